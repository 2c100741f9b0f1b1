"""Backups of a service: its database and the files that its rows refer to, in one tar file.

``backup`` runs while the service runs; the archive is read back before it gets its final name. ``restore`` needs the
service stopped, and removes the old data only after the restored data is verified.
"""

from autosbp.service.backup._backup import backup
from autosbp.service.backup._restore import restore

__all__ = ["backup", "restore"]
