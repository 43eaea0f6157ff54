"""Copies a file or directory to all nodes of the cluster and prints the result: copy_files.py SOURCE DEST."""
import sys

from cool import files

if len(sys.argv) != 3:
    sys.exit("usage: copy_files.py SOURCE DEST")
try:
    copied = files.copy(sys.argv[1], sys.argv[2])
except files.FilesError as error:
    sys.exit(str(error))
print("%d bytes on %d nodes" % (copied["bytes"], len(copied["nodes"])))
