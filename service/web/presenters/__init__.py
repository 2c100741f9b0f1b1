"""Content of pages as plain frozen values: no database, no HTML."""
