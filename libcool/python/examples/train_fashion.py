"""Trains a small convolutional network on Fashion-MNIST, with torch.distributed: each rank
processes a part of each batch.

    torchrun --nproc-per-node 4 train_fashion.py
    cool run -n 16 --env OMP_NUM_THREADS=1 -- python3 train_fashion.py --strategy fsdp2 --epochs 3
    MASTER_ADDR=h1 MASTER_PORT=29500 srun -n 16 python3 train_fashion.py --strategy zero1 --json

Strategies: `ddp` (DistributedDataParallel), `fsdp2` (fully_shard), `zero1` (DDP with
ZeroRedundancyOptimizer). The same ranks with the same options end with the same weights, bit by
bit. Pictures are those of Debian's dataset-fashion-mnist.
"""
import argparse
import functools
import gzip
import hashlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

FOLDER = "/usr/share/datasets/fashion-mnist"
SIDE, CLASSES = 28, 10
# Number of pictures that each rank tests at a time.
TEST_BATCH = 500
# The variables with a process's rank and the number of ranks, by launcher.
LAUNCHERS = (("RANK", "WORLD_SIZE"), ("COOL_RANK", "COOL_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
             ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


@functools.cache
def pictures(folder, part):
    """Returns the bytes of all pictures of a part ("train" or "t10k"), and their classes."""
    def content(kind, head):
        with gzip.open(os.path.join(folder, "%s-%s-ubyte.gz" % (part, kind))) as f:
            return torch.frombuffer(bytearray(f.read()[head:]), dtype=torch.uint8)

    return content("images-idx3", 16).view(-1, 1, SIDE, SIDE), content("labels-idx1", 8).long()


def network():
    """Returns a network of 282,714 parameters in two convolutions and two linear layers, equal at
    every rank."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 176), nn.ReLU(), nn.Linear(176, CLASSES))


class Training:
    """A network, distributed by one of the strategies, and its optimizer."""

    def __init__(self, strategy, rate, layers=None):
        self.layers = layers or network()
        if strategy == "fsdp2":
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            # Layers that are sharded separately are gathered just before they are needed; the root
            # has the rest.
            for layer in self.layers:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            self.model = fully_shard(self.layers, mesh=mesh)
            # Gathered and scattered parameters are in memory of the backend, if it provides any,
            # which avoids copies.
            self.model.set_allocate_memory_from_process_group_for_comm(True)
        else:
            self.model = DistributedDataParallel(self.layers)
        if strategy == "zero1":
            self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.Adam, parameters_as_bucket_view=True, lr=rate)
        else:
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)

    def gradients(self, images, classes):
        """Executes a forward and a backward pass and returns the loss of this rank's pictures."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(scaled(images)), classes)
        loss.backward()
        return loss.item()

    def step(self, images, classes):
        loss = self.gradients(images, classes)
        self.optimizer.step()
        return loss

    def weights(self):
        """Returns all parameters in one vector. All ranks must call this."""
        whole = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in self.layers.parameters())
        return torch.cat([p.detach().flatten() for p in whole])

    def accuracy(self, images, classes):
        """Returns the fraction of correctly classified pictures over all ranks."""
        rank, size = dist.get_rank(), dist.get_world_size()
        correct = torch.zeros(1)
        self.model.eval()
        with torch.no_grad():
            # Every rank must run the network equally often, because with FSDP2 that is a
            # collective.
            for first in range(0, len(images), size * TEST_BATCH):
                part = slice(first + rank * TEST_BATCH, first + (rank + 1) * TEST_BATCH)
                correct += (self.model(scaled(images[part])).argmax(1) == classes[part]).sum()
        self.model.train()
        dist.all_reduce(correct)
        return correct.item() / len(images)


def scaled(images):
    return images.float() / 127.5 - 1


def batches(count, batch, epoch, rank, size):
    """Returns this rank's indices for each step of an epoch. Pictures are shuffled; an incomplete
    last step is skipped."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    steps = count // (batch * size)
    return order[:steps * batch * size].view(steps, size, batch)[:, rank]


def digest(weights):
    """Returns a hash of the weights, which is equal if they are bitwise equal."""
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]


def train(options):
    """Trains with the given options and returns a report, which is the same at all ranks except for
    the seconds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    images, classes = pictures(options.data, "train")
    training = Training(options.strategy, options.rate)
    seconds, loss = [], None
    for epoch in range(options.epochs):
        for indices in batches(len(images), options.batch, epoch, rank, size)[:options.steps]:
            start = time.perf_counter()
            loss = training.step(images[indices], classes[indices])
            seconds.append(time.perf_counter() - start)
        if rank == 0 and not options.json:
            print("epoch %d: loss %.3f, %.1f ms a step" % (epoch + 1, loss, 1e3 * statistics.median(seconds)), flush=True)
    digests = [None] * size
    dist.all_gather_object(digests, digest(training.weights()))
    return {"backend": options.backend, "strategy": options.strategy, "ranks": size, "steps": len(seconds), "loss": loss,
            "step_seconds": statistics.median(seconds), "accuracy": training.accuracy(*pictures(options.data, "t10k")), "hash": digests[0],
            "hashes_equal": len(set(digests)) == 1}


def set_rendezvous():
    """Sets the variables that `init_process_group` reads (env://), if another launcher than
    torchrun started this process."""
    for rank_variable, size_variable in LAUNCHERS:
        if rank_variable in os.environ and size_variable in os.environ:
            os.environ.update(RANK=os.environ[rank_variable], WORLD_SIZE=os.environ[size_variable])
            break
    else:
        raise SystemExit("train_fashion: start this program by torchrun, cool run, srun or mpirun")
    if "MASTER_ADDR" not in os.environ and "COOL_GROUP" in os.environ:
        import cool

        with cool.world() as world:
            os.environ["MASTER_ADDR"] = world.place(0)[0]
    os.environ.setdefault("MASTER_PORT", "29500")


def parse_arguments(arguments=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--backend", default="cool", help="cool, or gloo; default %(default)s")
    p.add_argument("--strategy", choices=("ddp", "fsdp2", "zero1"), default="ddp", help="default %(default)s")
    p.add_argument("--epochs", type=int, default=1, help="default %(default)s")
    p.add_argument("--steps", type=int, help="of each epoch at most; default: all")
    p.add_argument("--batch", type=int, default=64, help="pictures of a rank in each step; default %(default)s")
    p.add_argument("--rate", type=float, default=2e-3, help="learning rate of Adam; default %(default)s")
    p.add_argument("--data", default=FOLDER,
                   help="directory of the four files; default %(default)s")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    options = p.parse_args(arguments)
    if min(options.epochs, options.batch, 1 if options.steps is None else options.steps) < 1:
        p.error("--epochs, --steps and --batch must be at least 1")
    return options


def main():
    options = parse_arguments()
    set_rendezvous()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(options.backend)
    try:
        result = train(options)
        if dist.get_rank() == 0:
            print(json.dumps(result) if options.json else "accuracy %(accuracy).4f, weights %(hash)s" % result, flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
