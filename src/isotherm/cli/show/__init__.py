"""What commands print. Each module is loaded by its command when there is something to print."""
