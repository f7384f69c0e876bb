"""Draw the pictures of the pages anew: ``python docs/pictures/draw.py``."""

from __future__ import annotations

import choice
import exchanges
import kernels
import secure_sum
import splits

if __name__ == "__main__":
    for picture in (splits, kernels, secure_sum, exchanges, choice):
        picture.draw()
