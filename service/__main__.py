"""``python -m autosbp.service``: serve with settings from the environment and no options; ``autosbp serve`` takes options."""

import argparse
import gc
import sys

from autosbp.errors import AutosbpError

gc.disable()  # imports create no garbage; without the collector they take a seventh less time
from autosbp.service.server import serve  # noqa: E402
from autosbp.service.settings import read_settings  # noqa: E402

gc.enable()

if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m autosbp.service",
        description="Serve with the AUTOSBP_* settings (docs/reference/configuration.md). `autosbp serve` takes options.",
    ).parse_args()
    try:
        serve(read_settings())
    except AutosbpError as error:
        sys.stderr.write(f"error: {error}\n")  # settings that cannot be read say nothing of how to log
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
