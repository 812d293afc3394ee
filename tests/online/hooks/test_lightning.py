"""The callback in Lightning where it is installed, and with what its hooks are called with."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError, MissingPackageError, NotFittedError
from laplace_metric.online.hooks import (
    PosteriorCallback,
    lightning_callback,
    posterior_numbers,
    seen_by,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:pytorch_lightning"),
]


def loader(seed, shift=0.0, shuffle=False):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % 3
    x = nn.functional.one_hot(y, 4) + 0.5 * torch.randn(60, 4, generator=g) + shift
    return DataLoader(TensorDataset(x, y), batch_size=20, shuffle=shuffle)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


class Callback:
    """As much of Lightning's as a callback needs."""


@pytest.fixture
def package(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Callback=Callback))


class Module(nn.Module):
    """What a LightningModule is for a callback."""

    def __init__(self):
        super().__init__()
        self.net, self.logged = network(), []

    def forward(self, x):
        return self.net(x)

    def log_dict(self, numbers):
        self.logged.append(numbers)


def trainer_of(**how):
    logged = []
    logger = SimpleNamespace(log_metrics=lambda numbers, step: logged.append((step, numbers)))
    values = {
        "world_size": 1,
        "current_epoch": 0,
        "max_epochs": 2,
        "should_stop": False,
        "global_step": 3,
        "train_dataloader": loader(0, shuffle=True),
        "val_dataloaders": [loader(1)],
        "loggers": [logger],
    }
    return SimpleNamespace(**{**values, **how}), logged


def test_it_fits_measures_logs_and_saves(package, tmp_path):
    module, state = Module().train(), torch.get_rng_state()
    before = copy.deepcopy(module.state_dict())
    callback = lightning_callback(ood={"far": loader(2, 9.0)}, folder=tmp_path)
    assert isinstance(callback, Callback)
    assert isinstance(callback, PosteriorCallback)
    with pytest.raises(NotFittedError, match="call trainer.fit"):
        callback.embedder_  # noqa: B018
    trainer, logged = trainer_of(train_dataloader=loader(0))
    callback.on_fit_start(trainer, module)
    callback.on_train_epoch_end(trainer, module)
    assert not module.logged
    trainer.current_epoch, trainer.global_step = 1, 6
    callback.on_train_epoch_end(trainer, module)
    (numbers,) = module.logged
    assert torch.equal(torch.get_rng_state(), state)
    again = LaplaceEmbedder(module).fit(loader(0), progress=False)
    queries, far = (seen_by(again, each) for each in (loader(1), loader(2, 9.0)))
    for name, value in posterior_numbers(queries, ood={"far": far}).items():
        assert numbers[f"laplace/{name}"] == pytest.approx(value, abs=1e-6), name
    assert {"laplace/r_auroc_epistemic", "laplace/ood_auroc_far"} <= set(numbers)
    callback.on_train_end(trainer, module)
    assert not logged
    assert callback.embedder_.fitted_.n_points == 60
    assert module.training
    assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())
    loaded = LaplaceEmbedder.from_pretrained(tmp_path, Module)
    x = loader(1).dataset.tensors[0]
    assert torch.equal(loaded(x).variance, callback.embedder_(x).variance)
    assert "| ood_auroc_far |" in (tmp_path / "README.md").read_text()


def test_every_few_epochs_and_after_an_early_end(package):
    callback, module = lightning_callback(every_n_epochs=2), Module()
    trainer, logged = trainer_of(max_epochs=-1)
    for epoch in range(5):
        trainer.current_epoch, trainer.global_step = epoch, 3 * (epoch + 1)
        callback.on_train_epoch_end(trainer, module)
        assert len(module.logged) == (epoch + 1) // 2
    callback.on_train_end(trainer, module)
    assert [step for step, _ in logged] == [15]
    assert "laplace/recall_at_1" in logged[0][1]
    stopped, _ = trainer_of(should_stop=True, max_epochs=9, global_step=99)
    callback.on_train_epoch_end(stopped, module)
    assert len(module.logged) == 3


def test_batches_of_other_kinds_and_given_loaders(package):
    train = [{"x": x, "labels": y} for x, y in loader(0)]
    callback = lightning_callback(fit_on=train, queries=train, settings={"structure": "diag"})
    trainer, _ = trainer_of(train_dataloader=None, val_dataloaders=None, max_epochs=1)
    callback.on_train_epoch_end(trainer, Module())
    assert callback.embedder_.settings.structure == "diag"
    assert callback.numbers_["recall_at_1"] > 0


def test_what_cannot_work_is_refused_before_training(package):
    with pytest.raises(InputError, match=r"one process, the trainer has 2.*distributed=True"):
        lightning_callback().on_fit_start(trainer_of(world_size=2)[0], Module())
    with pytest.raises(InputError, match="every_n_epochs=0"):
        lightning_callback(0)
    trainer, _ = trainer_of(train_dataloader={"a": loader(0)}, max_epochs=1)
    with pytest.raises(InputError, match=r"fit_on is a dict: pass lightning_callback\(fit_on="):
        lightning_callback().on_train_epoch_end(trainer, Module())


def test_without_the_package_it_is_named(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="pip install lightning"):
        lightning_callback()


def test_importing_the_hooks_imports_no_lightning():
    code = "import sys, laplace_metric.online.hooks; print('lightning' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def trained(library, callbacks, folder):
    """A LightningModule after three epochs, and its trainer."""

    class Embedder(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            x, y = batch
            return nn.functional.cross_entropy(self(x), y)

        def validation_step(self, batch, _):
            self.log("val", float(len(batch[0])))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    library.seed_everything(0)
    trainer = library.Trainer(
        max_epochs=3, callbacks=callbacks, default_root_dir=folder, accelerator="cpu", devices=1,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, num_sanity_val_steps=0, log_every_n_steps=1,
    )  # fmt: skip
    module = Embedder()
    trainer.fit(module, loader(0, shuffle=True), loader(1))
    return module, trainer


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_in_lightning_itself(name, tmp_path):
    pytest.importorskip(name.partition(".")[0], reason="Lightning is not installed")
    library = importlib.import_module(name)
    callback = lightning_callback(2, ood={"far": loader(2, 9.0)}, folder=tmp_path / "embedder")
    module, trainer = trained(library, [callback], tmp_path)
    plain, _ = trained(library, [], tmp_path)
    for (key, a), (_, b) in zip(module.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(a, b), key
    logged = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("laplace/")}
    assert logged == pytest.approx({f"laplace/{k}": v for k, v in callback.numbers_.items()})
    assert logged["laplace/ood_auroc_far"] > 0.5
    assert callback.embedder_(loader(1).dataset.tensors[0]).epistemic.shape == (60,)
    assert (tmp_path / "embedder" / "posterior.json").is_file()
