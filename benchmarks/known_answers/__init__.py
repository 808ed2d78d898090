"""Small tasks whose best learning rate is known, from a formula or from a full sweep."""
