"""Training that resumes after a kill: saves weights, optimiser, rates and generators at the end of an epoch."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flexround.io import resume

log = logging.getLogger(__name__)
NAME = "training"


class Progress:
    """The saved state of a training, which decides all later epochs.

    Args:
        model: the model on its device; its trained parameters and its buffers are saved.
        optimizer: the optimizer of its parameters, with tensors as state, as in Adam and SGD.
        others: further objects with ``state_dict`` and ``load_state_dict``, whose states JSON can hold.
        generators: random generators, besides torch's own for the CPU and for the model's device.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        others: Mapping[str, Any] | None = None,
        generators: Mapping[str, torch.Generator] | None = None,
    ) -> None:
        device = next(model.parameters()).device
        self.model, self.optimizer, self.others = model, optimizer, others or {}
        self.generators = {"global": torch.default_generator, **(generators or {})}
        if device.type == "cuda":
            torch.cuda.init()
            self.generators["device"] = torch.cuda.default_generators[device.index]
        self.device = device
        self.since = time.monotonic()

    def epochs(self, count: int, seed: int, epoch: Callable[[int], dict[str, float]]) -> dict[str, float]:
        """Call ``epoch`` with 0 to ``count`` - 1, except epochs finished before a kill; return the last epoch's facts.

        Dropout draws from torch's global generator, which is seeded with ``seed`` and restored afterwards.
        """
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            done, facts = self._go_on()
            for number in range(done, count):
                started = time.perf_counter()
                facts = epoch(number)
                said = ", ".join(f"{name} {value:.4f}" for name, value in facts.items())
                log.info("epoch %d/%d: %s, %.1f s", number + 1, count, said, time.perf_counter() - started)
                self._keep(number + 1, facts)
        return facts

    def _keep(self, epoch: int, facts: Mapping[str, float]) -> None:
        """Save the state after ``epoch`` epochs, and their ``facts``, if enough time has passed since the last save."""
        if not resume.worth(self.since):
            return
        tensors = self._weights()
        tensors |= {f"generator/{name}": generator.get_state() for name, generator in self.generators.items()}
        for number, parameter in enumerate(self._parameters()):
            moments = self.optimizer.state[parameter].items()  # SGD without momentum has None as value
            tensors |= {f"optimizer/{number}/{key}": value for key, value in moments if value is not None}
        rates = [group["lr"] for group in self.optimizer.param_groups]
        others = {name: other.state_dict() for name, other in self.others.items()}
        resume.save(NAME, tensors, epoch=epoch, facts=dict(facts), rates=rates, others=others)
        self.since = time.monotonic()

    @torch.no_grad()
    def _go_on(self) -> tuple[int, dict[str, float]]:
        """Restore the saved state; return the number of finished epochs, and the last epoch's facts."""
        if not (found := resume.load(NAME)):
            return 0, {}
        tensors, kept = found
        for key, value in self._weights().items():
            value.copy_(tensors.pop(key))
        for name, generator in self.generators.items():
            generator.set_state(tensors.pop(f"generator/{name}").clone())  # set_state misreads views
        parameters = self._parameters()
        for key, moment in tensors.items():  # a parameter without gradient has no moments
            _, number, name = key.split("/")
            self.optimizer.state[parameters[int(number)]][name] = moment.to(self.device)
        for settings, rate in zip(self.optimizer.param_groups, kept["rates"], strict=True):
            settings["lr"] = rate
        for name, other in self.others.items():
            other.load_state_dict(kept["others"][name])
        log.info("training resumes after %d epochs", kept["epoch"])
        return kept["epoch"], kept["facts"]

    def _weights(self) -> dict[str, Tensor]:
        trained = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        return {f"weights/{name}": value for name, value in (trained | dict(self.model.named_buffers())).items()}

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
