"""What commands print; loaded only when there is something to print."""
