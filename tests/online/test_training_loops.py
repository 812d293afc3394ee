"""The example of other training loops: in a tester of pytorch-metric-learning, and in Lightning."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning import losses, testers, trainers
from pytorch_metric_learning.utils import logging_presets
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import LaplaceEmbedder

CPU = torch.device("cpu")
PATH = Path(__file__).parents[2] / "examples" / "training_loops.py"
SPEC = importlib.util.spec_from_file_location("training_loops", PATH)
assert SPEC is not None
assert SPEC.loader is not None
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)
pytestmark = [
    pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:pytorch_lightning"),
]


def points(seed, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(90) % 3
    x = nn.functional.one_hot(y, 4) + 0.5 * torch.randn(90, 4, generator=g) + shift
    return TensorDataset(x, y)


TRAIN, VAL, FAR = points(0), points(1), points(2, shift=9.0)


def networks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU()), nn.Linear(8, 3)


def by_hand(embedder) -> dict[str, float]:
    """The numbers, pair by pair."""
    x, y = VAL.tensors
    z, of_known, of_far = embedder(x), embedder(x).epistemic, embedder(FAR.tensors[0]).epistemic
    distance = torch.cdist(z.mean, z.mean).fill_diagonal_(torch.inf)
    right = y[distance.argmin(1)] == y
    wrong = [(a > b) + 0.5 * (a == b) for a in of_known[~right] for b in of_known[right]]
    far = [(a > b) + 0.5 * (a == b) for a in of_far for b in of_known]
    return {
        "recall_at_1": float(right.float().mean()),
        "r_auroc": float(torch.stack(wrong).mean(dtype=torch.float64)),
        "ood_auroc_far": float(torch.stack(far).mean(dtype=torch.float64)),
    }


def made_tester(kind, *arguments, **how):
    pytest.importorskip("faiss", reason="the calculator's search needs the extra 'faiss'")
    calculator = AccuracyCalculator(include=("precision_at_1",), device=CPU)
    shared = {"dataloader_num_workers": 0, "data_device": CPU, "batch_size": 32}
    return kind(*arguments, accuracy_calculator=calculator, **shared, **how)


def test_the_tester_adds_its_numbers_to_those_of_its_base():
    trunk, embedder = networks()
    before = copy.deepcopy([*trunk.state_dict().values(), *embedder.state_dict().values()])
    state = torch.get_rng_state()
    tester = made_tester(example.LaplaceTester, TRAIN, {"far": FAR})
    found = tester.test({"val": VAL}, 1, trunk, embedder)["val"]
    assert torch.equal(torch.get_rng_state(), state)
    after = [*trunk.state_dict().values(), *embedder.state_dict().values()]
    assert all(map(torch.equal, before, after))
    base = made_tester(testers.GlobalEmbeddingSpaceTester)
    expected = base.test({"val": VAL}, 1, trunk, embedder)["val"]
    assert {name: found[name] for name in expected} == expected
    assert found["recall_at_1"] == pytest.approx(expected["precision_at_1_level0"])
    again = LaplaceEmbedder(nn.Sequential(trunk, embedder)).fit([TRAIN.tensors], progress=False)
    numbers = by_hand(again)
    assert {name: found[name] for name in numbers} == pytest.approx(numbers, abs=1e-3)
    assert found["ood_auroc_far"] > 0.8


class Keeper:
    """Stands for a RecordKeeper."""

    def __init__(self):
        self.records, self.hash_map = [], {}

    def update_records(self, records, iteration, parent_name="", **_):
        self.records.append((iteration, dict(records)))

    def save_records(self):
        pass

    def table_exists(self, name):
        return False


def weights_after(hook) -> list[torch.Tensor]:
    trunk, embedder = networks()
    optimizers = {
        "trunk_optimizer": torch.optim.SGD(trunk.parameters(), lr=0.1),
        "embedder_optimizer": torch.optim.SGD(embedder.parameters(), lr=0.1),
    }
    models, loss = {"trunk": trunk, "embedder": embedder}, losses.ContrastiveLoss()
    how = {"data_device": CPU, "dataloader_num_workers": 0, "end_of_epoch_hook": hook}
    torch.manual_seed(5)
    trainer = trainers.MetricLossOnly(models, optimizers, 30, {"metric_loss": loss}, TRAIN, **how)
    trainer.train(num_epochs=2)
    return [p.detach().clone() for p in (*trunk.parameters(), *embedder.parameters())]


def test_a_hook_container_records_them_and_training_is_as_it_was(tmp_path):
    keeper = Keeper()
    hooks = logging_presets.HookContainer(
        keeper, primary_metric="precision_at_1", save_models=False
    )
    tester = made_tester(
        example.LaplaceTester, TRAIN, {}, end_of_testing_hook=hooks.end_of_testing_hook
    )
    hook = hooks.end_of_epoch_hook(tester, {"train": TRAIN, "val": VAL}, str(tmp_path))
    assert all(map(torch.equal, weights_after(hook), weights_after(None)))
    recorded = [epoch for epoch, numbers in keeper.records if "r_auroc" in numbers]
    assert sorted(set(recorded)) == [1, 2]


def loader(data, shuffle=False):
    return DataLoader(data, batch_size=30, shuffle=shuffle)


def trained(library, callbacks, folder):
    """A LightningModule after three epochs, and its trainer."""

    class Embedder(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(*networks())

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            x, y = batch
            return nn.functional.cross_entropy(self(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    library.seed_everything(0)
    trainer = library.Trainer(
        max_epochs=3, callbacks=callbacks, default_root_dir=folder, accelerator="cpu", devices=1,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, log_every_n_steps=1,
    )  # fmt: skip
    module = Embedder()
    trainer.fit(module, loader(TRAIN, shuffle=True))
    return module, trainer


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_in_lightning(name, tmp_path):
    pytest.importorskip(name.partition(".")[0], reason="Lightning is not installed")
    library = importlib.import_module(name)
    callback = example.lightning_callback(loader(VAL), {"far": loader(FAR)}, every_n_epochs=2)
    module, trainer = trained(library, [callback], tmp_path)
    plain, _ = trained(library, [], tmp_path)
    for (key, a), (_, b) in zip(module.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(a, b), key
    logged = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("laplace/")}
    numbers = by_hand(callback.embedder_)
    assert logged == pytest.approx({f"laplace/{k}": v for k, v in numbers.items()}, abs=1e-3)
    assert module.training
