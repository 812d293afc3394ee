"""Inside trainers and testers of pytorch-metric-learning, as its users write them."""

from __future__ import annotations

import copy

import pytest
import torch
from pytorch_metric_learning import losses, testers, trainers
from pytorch_metric_learning.utils import logging_presets
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import nn
from torch.utils.data import TensorDataset

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.online.hooks import LaplaceTester, posterior_numbers, seen_by

pytest.importorskip("faiss", reason="the calculator's search needs the extra 'faiss'")
pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
CPU = torch.device("cpu")


def points(seed, shift=0.0, levels=1):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(90) % 3
    x = nn.functional.one_hot(y, 4) + 0.5 * torch.randn(90, 4, generator=g) + shift
    return TensorDataset(x, y if levels == 1 else torch.stack([y, y // 2], 1))


TRAIN, VAL, FAR = points(0), points(1), points(2, shift=9.0)


def networks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 3)


def made(kind=LaplaceTester, **how):
    calculator = AccuracyCalculator(include=("precision_at_1",), device=CPU)
    shared = {"dataloader_num_workers": 0, "data_device": CPU, "batch_size": 32}
    return kind(accuracy_calculator=calculator, **shared, **how)


def test_its_numbers_stand_beside_those_of_its_base():
    trunk, embedder = networks()
    before = copy.deepcopy([*trunk.state_dict().values(), *embedder.state_dict().values()])
    state = torch.get_rng_state()
    tester = made(ood={"far": FAR})
    splits = [("val", ["val", "train"])]
    found = tester.test({"train": TRAIN, "val": VAL}, 1, trunk, embedder, splits)
    assert torch.equal(torch.get_rng_state(), state)
    base = made(testers.GlobalEmbeddingSpaceTester)
    expected = base.test({"train": TRAIN, "val": VAL}, 1, trunk, embedder, copy.deepcopy(splits))
    same = {name: value for name, value in found["val"].items() if name in expected["val"]}
    assert same == expected["val"]
    assert found["val"]["recall_at_1_level0"] == pytest.approx(same["precision_at_1_level0"])
    ours = LaplaceEmbedder(nn.Sequential(trunk, embedder)).fit([TRAIN.tensors], progress=False)
    train, val, far = (seen_by(ours, [data.tensors]) for data in (TRAIN, VAL, FAR))
    numbers = posterior_numbers(val, val.joined([val, train]), {"far": far}, among_them=True)
    for name, value in numbers.items():
        assert found["val"][f"{name}_level0"] == pytest.approx(value, abs=1e-3), name
    assert found["val"]["ood_auroc_far_level0"] > 0.8
    assert tester.embedder_.fitted_.n_points == 90
    after = [*trunk.state_dict().values(), *embedder.state_dict().values()]
    assert all(map(torch.equal, before, after))


def test_each_level_of_labels_has_its_own_posterior():
    tester = made(label_hierarchy_level="all", fit_on=points(0, levels=2))
    found = tester.test({"val": points(1, levels=2)}, 1, *networks())["val"]
    levels = [found[f"r_auroc_epistemic_level{i}"] for i in range(2)]
    assert levels[0] != levels[1]
    assert found["AVERAGE_r_auroc_epistemic"] == pytest.approx(sum(levels) / 2)


class Keeper:
    """Stands for a RecordKeeper."""

    def __init__(self):
        self.records, self.hash_map = [], {}

    def update_records(self, records, iteration, parent_name="", **_):
        self.records.append((parent_name, iteration, dict(records)))

    def save_records(self):
        pass

    def table_exists(self, name):
        return False


def trainer_of(hook, trunk, embedder, epochs=2):
    optimizers = {
        "trunk_optimizer": torch.optim.SGD(trunk.parameters(), lr=0.1),
        "embedder_optimizer": torch.optim.SGD(embedder.parameters(), lr=0.1),
    }
    models, loss = {"trunk": trunk, "embedder": embedder}, losses.ContrastiveLoss()
    how = {"data_device": CPU, "dataloader_num_workers": 0, "end_of_epoch_hook": hook}
    torch.manual_seed(5)
    trainer = trainers.MetricLossOnly(models, optimizers, 30, {"metric_loss": loss}, TRAIN, **how)
    trainer.train(num_epochs=epochs)
    return [p.detach().clone() for p in (*trunk.parameters(), *embedder.parameters())]


def test_a_hook_container_records_them(tmp_path):
    keeper = Keeper()
    hooks = logging_presets.HookContainer(
        keeper, primary_metric="precision_at_1", save_models=False
    )
    tester = made(end_of_testing_hook=hooks.end_of_testing_hook)
    splits = [("val", ["val"])]
    sets = {"train": TRAIN, "val": VAL}
    hook = hooks.end_of_epoch_hook(tester, sets, str(tmp_path), splits_to_eval=splits)
    trainer_of(hook, *networks())
    recorded = [(epoch, r) for _, epoch, r in keeper.records if "r_auroc_epistemic_level0" in r]
    assert [epoch for epoch, _ in recorded] == [1, 2]
    assert recorded[0][1]["mean_epistemic_level0"] != recorded[1][1]["mean_epistemic_level0"]


def test_its_own_hook_leaves_training_as_it_was():
    asked = []

    class Noted(LaplaceTester):
        def test(self, sets, epoch, *others):
            asked.append(epoch)
            return super().test(sets, epoch, *others)

    tester = made(Noted, fit_on=TRAIN)
    hook = tester.end_of_epoch_hook({"val": VAL}, test_interval=2)
    with_hook = trainer_of(hook, *networks(), epochs=4)
    without = trainer_of(None, *networks(), epochs=4)
    assert asked == [2, 4]
    assert all(map(torch.equal, with_hook, without))
    assert tester.embedder_(VAL.tensors[0]).epistemic.shape == (90,)


def test_a_trunk_alone_and_its_output():
    trunk, embedder = networks()
    whole = nn.Sequential(*trunk, embedder)
    alone = made(fit_on=TRAIN).test({"val": VAL}, 1, whole)["val"]
    both = made(fit_on=TRAIN).test({"val": VAL}, 1, trunk, embedder)["val"]
    assert alone == pytest.approx(both)
    first = nn.Sequential(trunk[0])
    used = made(fit_on=TRAIN, use_trunk_output=True)
    used.test({"val": VAL}, 1, first, embedder)
    assert used.embedder_.head_.n_outputs == 8


def test_batches_of_dictionaries_and_a_data_parallel_trunk():
    class Items(torch.utils.data.Dataset):
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data)

        def __getitem__(self, i):
            return {"x": self.data[i][0], "y": self.data[i][1]}

    trunk, embedder = networks()
    getter = {"data_and_label_getter": lambda batch: (batch["x"], batch["y"])}
    tester = made(fit_on=Items(TRAIN), **getter)
    found = tester.test({"val": Items(VAL)}, 1, nn.DataParallel(trunk), embedder)["val"]
    plain = made(fit_on=TRAIN).test({"val": VAL}, 1, trunk, embedder)["val"]
    assert found == pytest.approx(plain)


def test_bad_arguments_are_named():
    tester = made()
    with pytest.raises(InputError, match=r"fit_on='train' is none of the splits \['val'\]"):
        tester.test({"val": VAL}, 1, *networks())
    with pytest.raises(NotFittedError, match="call test"):
        tester.embedder_  # noqa: B018
    with pytest.raises(InputError, match="test_interval=0"):
        tester.end_of_epoch_hook({"val": VAL}, test_interval=0)
