"""Runs programs of other projects on a backend of torch.distributed: the test scripts of
accelerate, and an epoch of Lightning.

    python3 tests/external/torch_peers.py --backend cool --out result.jsonl

A Python with torch, cool, accelerate and lightning must run this program (torch_suite.py).
COOL_SOCKETS contains the socket of the agent of each rank, separated by commas. Ranks are forked,
so that modules are imported only once. The results are lines of JSON in the format of
torch_cases.py.
"""
import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback

# These variables disable network access and GPUs.
os.environ.update(ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")

import accelerate.test_utils.scripts  # noqa: E402,F401
import lightning.pytorch as lightning  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402

SECONDS = 90
# The functions that are omitted from each script. accelerate's `join_uneven_inputs` has an effect
# on GPUs only, so these functions hang or fail with any CPU backend.
SCRIPTS = {"test_script": (), "test_ops": (), "test_sync": (),
           "test_distributed_data_loop": ("test_can_join_uneven_inputs", "test_join_can_override_even_batches",
                                          "test_join_can_override_for_mixed_type_dataloaders",
                                          "test_join_raises_warning_for_iterable_when_overriding_even_batches")}


def accelerate_script(name, omitted):
    def body(backend):
        # accelerate itself would use gloo, but it uses an existing group without changes.
        dist.init_process_group(backend)
        try:
            script = importlib.import_module("accelerate.test_utils.scripts." + name)
            for function in omitted:
                setattr(script, function, lambda: None)
            script.main()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    return body


class LinearModel(lightning.LightningModule):
    """A model that learns a linear function."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        inputs, target = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), target)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


def lightning_epoch(backend):
    """Trains one epoch with DDP. The weights must be close to the target, and equal at all
    ranks."""
    lightning.seed_everything(1, verbose=False)
    inputs, target = torch.randn(1024, 8), torch.arange(8.0).view(8, 1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs @ target), batch_size=8)
    model = LinearModel()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), default_root_dir=folder, **quiet,
                                    strategy=DDPStrategy(process_group_backend=backend))
        trainer.fit(model, data)
    weights = model.layer.weight.detach()
    if (weights - target.T).abs().max() > 0.1:
        raise AssertionError("weights %s after an epoch" % weights)
    if dist.get_backend() != backend:
        raise AssertionError("the backend is %s" % dist.get_backend())
    all_weights = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(all_weights, weights)
    if not all(torch.equal(weights, other) for other in all_weights):
        raise AssertionError("weights differ: %s" % all_weights)
    dist.destroy_process_group()


# By name, the function of each rank and the number of ranks. accelerate's scripts expect two ranks.
PROGRAMS = {**{"accelerate: " + name: (accelerate_script(name, left_out), 2) for name, left_out in SCRIPTS.items()},
            "lightning: one epoch of DDP": (lightning_epoch, 4)}


def run_rank(body, backend, rank, size, port, pipe):
    """Runs `body` as a rank and ends the process. Sends the reason of a failure to the pipe `pipe`,
    or an empty string."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), GROUP_RANK="0", TORCHELASTIC_RUN_ID="peers")
    sockets = os.environ.get("COOL_SOCKETS")
    if sockets:
        os.environ["COOL_SOCKET"] = sockets.split(",")[rank]
    why, stdout = "", io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout):
            body(backend)
    except BaseException as e:
        if not isinstance(e, SystemExit) or e.code:
            why = traceback.format_exc()[-3000:]
    pipe.send(why)
    os._exit(bool(why))


def attempt(body, size, backend):
    """Runs all ranks of a program. Returns the reasons of failures, or an empty string."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context, ranks = multiprocessing.get_context("fork"), []
    for rank in range(size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=run_rank, args=(body, backend, rank, size, port, sender))
        process.start()
        sender.close()
        ranks.append((process, receiver))
    end, reasons = time.monotonic() + SECONDS, []
    for rank, (process, receiver) in enumerate(ranks):
        process.join(max(0.0, end - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
            reasons.append("rank %d: not finished within %d s" % (rank, SECONDS))
        elif process.exitcode:
            reasons.append("rank %d: %s" % (rank, receiver.recv() if receiver.poll() else "status %d" % process.exitcode))
    return "\n".join(reasons)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--backend", required=True)
    p.add_argument("--out", required=True, help="file for the results")
    options = p.parse_args()
    with open(options.out, "w") as file:
        for name, (body, size) in PROGRAMS.items():
            start = time.monotonic()
            why = attempt(body, size, options.backend)
            file.write(json.dumps({"test": name, "result": "failed" if why else "passed", "why": why, "seconds": time.monotonic() - start}) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
