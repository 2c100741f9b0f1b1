"""``python -m service``: serve with the settings of the environment."""

import logging
import sys

from autosbp.errors import AutosbpError
from service.server import serve
from service.settings import Settings

if __name__ == "__main__":
    try:
        serve(Settings())
    except AutosbpError as error:
        logging.getLogger("service").error("%s", error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
