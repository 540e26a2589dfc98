"""The ports to the world: what the loop reads, writes and starts."""

import os

from resources.libraries import first_processor, tell

tell(os.environ, first_processor())
