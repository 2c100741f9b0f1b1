"""Alembic migrations of the service's database; ``Database.upgrade`` runs them at startup."""
