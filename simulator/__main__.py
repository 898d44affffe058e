"""``python -m simulator`` is ``clustersim``."""

from simulator.cli import main

if __name__ == "__main__":
    main()
