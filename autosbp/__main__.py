"""``python -m autosbp``: run the ``autosbp`` command where its script is not on the path."""

from __future__ import annotations

from autosbp.cli import main

if __name__ == "__main__":  # false in processes that a command spawns
    main()
