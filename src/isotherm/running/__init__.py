"""From a plan to rows in a store."""
