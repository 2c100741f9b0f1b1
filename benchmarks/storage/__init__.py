"""The real service while its storage fails."""
