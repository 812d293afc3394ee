"""Folders for hubs: written and read again, with another network, without one, without a hub."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import FileFormatError, InputError, MissingPackageError
from laplace_metric.hub._pretrained import FILE
from tests.saved_files import flip, of_version, parts_of

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 5, generator=G), torch.arange(60) % 3


class Tied(nn.Module):
    """One matrix under two names, a buffer, and a view of a larger one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.register_buffer("whole", torch.arange(10.0))
        self.register_buffer("part", self.whole[5:])
        self.norm, self.head = nn.BatchNorm1d(5), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.norm(self.second(self.first(x).tanh()) + self.part))


def plain():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))


def trained(make, seed=0):
    torch.manual_seed(seed)
    model = make()
    model(X)  # moves the statistics of a batch norm
    return model.eval()


def same(a, b):
    for name in ("mean", "variance", "epistemic"):
        assert torch.equal(getattr(a(X), name), getattr(b(X), name))


@pytest.fixture
def embedder():
    return LaplaceEmbedder(trained(plain)).fit([(X, Y)], progress=False)


@pytest.mark.parametrize("make", [plain, Tied])
def test_another_network_gets_the_weights_and_the_given_one_stays(make, tmp_path):
    embedder = LaplaceEmbedder(trained(make)).fit([(X, Y)], progress=False)
    embedder.save_pretrained(tmp_path)
    other = trained(make, seed=1)
    before = copy.deepcopy(other.state_dict())
    loaded = LaplaceEmbedder.from_pretrained(tmp_path, other)
    same(loaded, embedder)
    assert loaded.model is not other
    assert all(torch.equal(before[name], t) for name, t in other.state_dict().items())
    same(LaplaceEmbedder.from_pretrained(tmp_path, make), embedder)
    with torch.device("meta"):
        empty = make()
    if make is plain:  # a view of a buffer is no view any more without memory
        same(LaplaceEmbedder.from_pretrained(tmp_path, empty), embedder)


def test_a_network_that_has_the_weights_is_taken_as_it_is(embedder, tmp_path):
    embedder.save_pretrained(tmp_path)
    assert LaplaceEmbedder.from_pretrained(tmp_path, embedder.model).model is embedder.model


def test_weights_that_are_published_elsewhere_are_left_out(embedder, tmp_path):
    embedder.save_pretrained(tmp_path, weights=False)
    assert not parts_of(tmp_path / FILE)["network"].arrays
    same(LaplaceEmbedder.from_pretrained(tmp_path, embedder.model), embedder)
    with pytest.raises(FileFormatError, match="the weights differ"):
        LaplaceEmbedder.from_pretrained(tmp_path, trained(plain, 1))
    with pytest.raises(InputError, match="posterior.*Sequential.*pass model="):
        LaplaceEmbedder.from_pretrained(tmp_path)


def test_embeddings_need_no_network(tmp_path):
    embedder = LaplaceEmbedder.from_embeddings(X, Y)
    embedder.save_pretrained(tmp_path)
    same(LaplaceEmbedder.from_pretrained(tmp_path), embedder)


def test_a_folder_has_one_file_of_ours_and_others_stay(embedder, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    for _ in range(2):
        embedder.save_pretrained(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", FILE]
    assert (tmp_path / "README.md").read_text() == "mine"


class Stateful(nn.Linear):
    def get_extra_state(self):
        return {"a": 1}

    def set_extra_state(self, state):
        pass


def test_a_state_that_is_no_tensor_is_named(tmp_path):
    embedder = LaplaceEmbedder(nn.Sequential(Stateful(5, 4), nn.Linear(4, 3)))
    embedder.fit([(X, Y)], progress=False)
    with pytest.raises(InputError, match=r"'0._extra_state'.*a dict.*weights=False"):
        embedder.save_pretrained(tmp_path)
    embedder.save_pretrained(tmp_path, weights=False)


def test_another_network_is_named(embedder, tmp_path):
    embedder.save_pretrained(tmp_path)
    with pytest.raises(FileFormatError, match="weights.*Sequential.*not go into"):
        LaplaceEmbedder.from_pretrained(tmp_path, nn.Sequential(nn.Linear(5, 9)))
    with pytest.raises(InputError, match="model=.*is a name"):
        LaplaceEmbedder.from_pretrained(tmp_path, "resnet")


@pytest.mark.parametrize("array", ["network/0.weight", "posterior/eigenvalues"])
def test_damage_is_noticed(array, embedder, tmp_path):
    embedder.save_pretrained(tmp_path)
    flip(tmp_path / FILE, array)
    with pytest.raises(FileFormatError, match="damaged"):
        LaplaceEmbedder.from_pretrained(tmp_path, plain)
    embedder.save_pretrained(tmp_path)
    of_version(tmp_path / FILE, array.split("/")[0], 1 + 98)
    with pytest.raises(FileFormatError, match="version 99"):
        LaplaceEmbedder.from_pretrained(tmp_path, plain)
    (tmp_path / FILE).unlink()
    with pytest.raises(FileFormatError, match="does not exist"):
        LaplaceEmbedder.from_pretrained(tmp_path, plain)


def test_what_is_neither_a_folder_nor_a_name(tmp_path):
    for source in ("nowhere", "./no/where", str(tmp_path / "none"), tmp_path / "none"):
        with pytest.raises(InputError, match="no folder.*nor the name"):
            LaplaceEmbedder.from_pretrained(source)


class Hub:
    """Stands for huggingface_hub."""

    def __init__(self, result):
        self.result, self.asked = result, []

    def snapshot_download(self, name, revision=None):
        self.asked.append((name, revision))
        if isinstance(self.result, Exception):
            raise self.result
        return str(self.result)


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # so that nothing is asked of any network

    def install(result):
        made = Hub(result)
        monkeypatch.setitem(sys.modules, "huggingface_hub", made)
        return made

    return install


def test_a_repository_is_downloaded_and_read(hub, embedder, tmp_path):
    embedder.save_pretrained(tmp_path / "cache")
    there = hub(tmp_path / "cache")
    same(LaplaceEmbedder.from_pretrained("me/birds", plain, revision="v2"), embedder)
    assert there.asked == [("me/birds", "v2")]


def test_what_a_hub_says_is_one_line(hub):
    hub(OSError("cannot find it.\n\nMany more words."))
    with pytest.raises(InputError) as seen:
        LaplaceEmbedder.from_pretrained("me/birds")
    message = str(seen.value)
    assert message.startswith("source='me/birds' cannot be downloaded: OSError: cannot find it.")
    assert "HF_HUB_OFFLINE is set" in message
    assert "\n" not in message


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError, match="pip install huggingface_hub"):
        LaplaceEmbedder.from_pretrained("me/birds")
