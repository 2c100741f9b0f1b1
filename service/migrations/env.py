"""Alembic's entry point: runs the revisions on the connection that ``autosbp.service.db`` passes."""

from alembic import context

from autosbp.service.models import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
