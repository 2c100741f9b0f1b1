"""The real service while what it stores to fails."""
