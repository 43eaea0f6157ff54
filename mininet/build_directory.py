"""Cargo's target directory, which also contains the programs that tests and benchmarks install."""
import os

TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR")
                         or os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "target"))
