"""``python -m service``: serve with the settings of the environment, and without arguments; ``autosbp serve`` takes some."""

import argparse
import gc
import logging
import sys

from autosbp.errors import AutosbpError

gc.disable()  # while modules are imported, none of which becomes garbage: a seventh of the time
from service.server import serve  # noqa: E402
from service.settings import read_settings  # noqa: E402

gc.enable()

if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m service",
        description="Serve with the settings of the environment (AUTOSBP_*, docs/service.md). `autosbp serve` takes options.",
    ).parse_args()
    try:
        serve(read_settings())
    except AutosbpError as error:
        logging.getLogger("service").error("%s", error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
