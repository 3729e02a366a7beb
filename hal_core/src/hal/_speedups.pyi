from typing import Final

VERSION: Final[int]
