"""One worker: sets itself up, trains, and says how it ended. The loop is `train`; everything else serves it.

Started by trainer.launch, once per rank; `torchrun -m trainer.train` works as well. No rank enters a step before every
rank holds its data: a rank that waits for data can be told to stop without leaving the others inside a collective.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from typing import Any

import torch.distributed as dist

from blackwell.verdict import EXIT_CODES, Verdict
from trainer.export import export_model
from trainer.judge import classify, first_line
from trainer.log import Log
from trainer.optim import learning_rate, set_learning_rate
from trainer.precision import find_hardware
from trainer.session import FLUSH_AT_END_SECONDS, Session
from trainer.settings import TRAIN_CHANNEL, Job, Places, decide, read_config
from trainer.setup import open_session
from trainer.signals import StopFlag
from trainer.status import StatusFile, status_folder
from trainer.step import exchange, forward_backward, update
from trainer.watch.memory import out_of_memory_bytes

SAVE_GRACE_SECONDS = 60.0
"""How long a failing rank waits for the save that is going on."""


def train(s: Session) -> Verdict:
    """Takes steps until the last one, a stop, or a loss that is no loss any more."""
    job, progress = s.job, s.progress
    data = s.next_data()
    if s.agree_to_stop():
        return s.stopped(s.stop_reason)
    s.meter.start()
    while progress.step < job.steps:
        step = progress.step + 1
        s.begin_step(step)
        rate = learning_rate(job.training, step, job.steps)
        set_learning_rate(s.optimizer, rate)

        loss_sum = forward_backward(s.model, data.batches, job.training.seed, step, s.rank, s.loss_factor())
        loss_sum, labels = s.faults.loss(step, loss_sum), data.labels
        if step < job.steps:
            data = s.next_data()
        outcome = exchange(loss_sum, labels, s.votes(), s.parameters, job.tokens_per_step / s.scale.value)
        if why := s.why_diverged(outcome):
            return s.diverged(step, why)
        update(s.optimizer, s.parameters, outcome, job.training, s.scale, job.tokens_per_step)
        s.end_step(outcome, rate)

        if outcome.stop:
            return s.stopped(s.stop_reason)
        if s.obey(outcome):
            return s.stopped("asked for through the control file")
        if s.plan_has_ended(outcome):
            return Verdict.PLAN_ENDED
        if s.checkpoint_due():
            s.save()
        if s.validation_due() and not s.validate():
            return s.stopped(s.stop_reason)
        s.store.poll()
    return Verdict.COMPLETED


def finish(s: Session, places: Places) -> None:
    """After the last step: the last checkpoint, and, while it is copied to S3, the model for others to use."""
    totals: dict[str, Any] = s.meter.totals()
    s.save(block=True)
    if s.job.is_language_model:
        export(s, places)
    s.flush(FLUSH_AT_END_SECONDS)
    s.log.event("finish", step=s.progress.step, final_loss=s.last_loss, tokens=s.progress.tokens, **totals)


def export(s: Session, places: Places) -> None:
    """Collective. Leaves the model where SageMaker uploads it from."""
    channel = places.channel(TRAIN_CHANNEL)
    with s.watchdog.slow("export"):
        size = export_model(
            s.model,
            s.job.shape,
            places.model,
            max_position=s.job.seq_length,
            tokenizer=channel / "tokenizer.json",
            beat=lambda: s.watchdog.beat("export", slow=True),
        )
    s.log.note(f"model of {size} bytes exported as Hugging Face safetensors")


def fail(error: BaseException, status: StatusFile, job: Job | None, session: Session | None) -> int:
    """Tells the launcher why this rank ends; the caller ends the process, other ranks must not wait for it for long.

    A save that is going on in the background is given time: it may be the checkpoint that the next start needs.
    """
    verdict, secondary = classify(error)
    if session is not None and not secondary:
        session.finish_save(SAVE_GRACE_SECONDS)
    step = status.state.step if status.at_step is None else status.at_step
    detail: dict[str, Any] = {}
    if verdict is Verdict.OUT_OF_MEMORY and job is not None:
        detail = {
            "bytes": out_of_memory_bytes(error),
            "phase": status.phase,
            "micro_batch_size": job.micro_batch_size,
            "global_batch_size": job.global_batch_size,
            "activation_checkpointing": job.recompute.value,
        }
    status.write(verdict=verdict, cause=first_line(error), secondary=secondary, detail=detail, step=step)
    if detail and job is not None:
        rank = status.state.rank
        log = Log(job.run, rank)
        log.event("out_of_memory", every_rank=True, step=step, rank=rank, phase=status.phase, bytes=detail["bytes"])
    if not secondary:
        traceback.print_exception(error)
    sys.stderr.flush()
    return EXIT_CODES.get(verdict, EXIT_CODES[Verdict.USER_ERROR])


def main() -> int:
    """Runs this rank to its end; the exit code is 0 for every end that all ranks agreed on."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    folder = status_folder()
    stop, status = StopFlag(folder), StatusFile(folder, rank)
    stop.install()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # stacks on demand
    status.write()
    job: Job | None = None
    session: Session | None = None
    try:
        places = Places.from_environment()
        job = decide(read_config(places), world)
        session = open_session(job, places, find_hardware(int(os.environ.get("LOCAL_RANK", "0"))), rank, stop, status)
        verdict = train(session)
        if verdict is Verdict.COMPLETED:
            finish(session, places)
        session.close()
    except BaseException as error:
        code = fail(error, status, job, session)
        sys.stdout.flush()
        os._exit(code)
    # The launcher learns the end before anything is torn down.
    status.write(verdict=verdict, cause=session.cause, step=session.failed_step or session.progress.step)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if verdict is not Verdict.DIVERGED else EXIT_CODES[verdict]


if __name__ == "__main__":
    sys.exit(main())
