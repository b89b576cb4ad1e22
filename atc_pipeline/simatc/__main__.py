"""`python -m atc_pipeline.simatc`."""

import sys

from atc_pipeline.simatc.cli import main

sys.exit(main())
