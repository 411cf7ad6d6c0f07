"""The command `toolkit` as a module, which a launcher can start in several processes."""

import sys

from toolkit.cli import main

sys.exit(main())
