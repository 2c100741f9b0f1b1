"""What pages show, as plain frozen values: no database, no HTML."""
