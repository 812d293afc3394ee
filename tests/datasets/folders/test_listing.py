"""Which files are images, which class they are of, and what an odd folder is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from laplace_metric.datasets import load_folder
from laplace_metric.errors import InputError, LabelError


def test_folders_are_classes_and_paths_are_ids(photos):
    found = load_folder(photos)
    assert found.ids.tolist() == [
        "cat/1.png",
        "cat/2.png",
        "dog/1.png",
        "dog/2.png",
        "dog/2024/3.png",
    ]
    assert found.labels.tolist() == ["cat"] * 2 + ["dog"] * 3
    assert found.class_names == ("cat", "dog")
    assert found.numbers.tolist() == [0, 0, 1, 1, 1]
    assert repr(found) == "ImageFolder('photos', 5 images, 2 classes)"


def test_hidden_files_and_other_files_are_left_out_and_capitals_count(photos, write, caplog):
    write("photos/dog/.hidden.png")
    write("photos/.trash/4.png")
    write("photos/cat/UPPER.PNG", format="png")
    (photos / "cat" / "notes.txt").touch()
    (photos / "bird").mkdir()  # empty
    with caplog.at_level("INFO", "laplace_metric"):
        found = load_folder(str(photos))
    assert len(found) == 6
    assert "cat/UPPER.PNG" in found.ids
    assert found.class_names == ("cat", "dog")
    assert "1 files that are no images" in caplog.text


def test_names_of_any_language(write, tmp_path):
    names = ["Grünfink/été 1.png", "сова/1.png", "鳥/フクロウ.png", "🦉/a b'c\".png"]
    for name in names:
        write(f"photos/{name}")
    found = load_folder(tmp_path / "photos")
    assert sorted(found.ids.tolist()) == sorted(names)
    assert set(found.labels) == {name.split("/")[0] for name in names}
    assert found.pixels().shape == (4, 3, 4, 6)


def test_links_are_followed_but_not_in_circles(photos, write, tmp_path):
    write("elsewhere/9.png")
    (photos / "owl").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (photos / "cat" / "linked.png").symlink_to(photos / "dog" / "1.png")
    (photos / "cat" / "up").symlink_to(photos, target_is_directory=True)
    (photos / "dog" / "cats").symlink_to(photos / "cat", target_is_directory=True)
    found = load_folder(photos).ids.tolist()
    assert "owl/9.png" in found
    assert "cat/linked.png" in found
    assert not [name for name in found if "/up/" in name]
    assert [name for name in found if "dog/cats/" in name] == [
        "dog/cats/1.png",
        "dog/cats/2.png",
        "dog/cats/linked.png",
    ]


def test_a_link_to_nothing_is_named_when_it_is_read(photos):
    (photos / "dog" / "gone.png").symlink_to(photos / "nowhere.png")
    found = load_folder(photos)
    assert found.unreadable() == ("dog/gone.png",)
    with pytest.raises(InputError, match=r"dog/gone.png.*No such file"):
        found.pixels()


def test_without_classes(write, tmp_path):
    write("photos/1.png")
    found = load_folder(tmp_path / "photos")
    assert found.labels is None
    assert found.class_names == ()
    assert repr(found) == "ImageFolder('photos', 1 images, without classes)"
    assert found[0].shape == (3, 4, 6)
    with pytest.raises(LabelError, match="folder.*its own"):
        _ = found.numbers


def test_the_class_may_stand_anywhere_in_the_path(photos, write):
    deepest = load_folder(photos, label_of=lambda path: Path(path).parent.name)
    assert deepest.labels.tolist() == ["cat", "cat", "dog", "dog", "2024"]
    write("photos/beside.png")
    found = load_folder(photos, label_of=lambda path: path.split("/")[-1][0])
    assert found.labels.tolist() == ["b", "1", "2", "1", "2", "3"]


@pytest.mark.parametrize(
    ("label_of", "says"),
    [
        (lambda path: None, r"label_of\('cat/1.png'\) is None: return the name"),
        (lambda path: {}[path], r"label_of\('cat/1.png'\) fails: KeyError"),
    ],
)
def test_a_function_that_names_no_class(photos, label_of, says):
    with pytest.raises(LabelError, match=says):
        load_folder(photos, label_of=label_of)


def test_folders_that_hold_no_images_say_what_they_hold(tmp_path, photos, write):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty holds.*is empty\."):
        load_folder(tmp_path / "empty")
    for number in range(3):
        (tmp_path / "empty" / f"{number}.HEIC").touch()
    with pytest.raises(InputError, match=r"files: 3 .heic.*Convert images"):
        load_folder(tmp_path / "empty")
    write("photos/beside.png")
    with pytest.raises(InputError, match=r"\(cat/1.png\).*next.*\(beside.png\)"):
        load_folder(photos)


def table(folder, text, name="photos.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_a_table_lists_images_with_their_classes(photos):
    path = table(photos, "label,path\nfeline,cat/2.png\ncanine,dog/2024/3.png\n")
    found = load_folder(path)
    assert found.ids.tolist() == ["cat/2.png", "dog/2024/3.png"]
    assert found.labels.tolist() == ["feline", "canine"]
    whole = load_folder(photos)
    assert (found.pixels() == whole.pixels([1, 4])).all()
    assert found.name == "photos.csv"


def test_a_table_may_call_its_columns_otherwise(photos):
    path = table(photos, "file\tkind\tlabel\ncat/1.png\tpet\t7\n", "photos.tsv")
    with pytest.raises(InputError, match=r"'path' or 'image'.*'file', 'kind', 'label'"):
        load_folder(path)
    found = load_folder(path, path_column="file", label_column="kind")
    assert (found.ids.tolist(), found.labels.tolist()) == (["cat/1.png"], ["pet"])
    without = load_folder(table(photos, "image\ncat/1.png\n"))
    assert without.labels is None
    with pytest.raises(InputError, match=r"label_column='name': .*columns: 'file', 'kind'"):
        load_folder(path, path_column="file", label_column="name")
    by = load_folder(path, path_column="file", label_of=lambda name: name[:3])
    assert by.labels.tolist() == ["cat"]


@pytest.mark.parametrize(
    ("rows", "error", "says"),
    [
        ("", InputError, r"photos.csv holds no row"),
        ("cat/1.png,\n", LabelError, r"row 1 has an empty label"),
        ("cat/1.png,a\ncat/1.png,b\n", InputError, r"names cat/1.png twice"),
        ("cat/1.png,a\ncat/9.png,b\n", InputError, r"row 2: .*cat/9.png is no file"),
        ("cat/1.png,a,b\n", InputError, r"line 2: 3 fields where the first line has 2"),
    ],
)
def test_a_table_that_is_wrong_names_the_row(photos, rows, error, says):
    with pytest.raises(error, match=says):
        load_folder(table(photos, f"path,label\n{rows}"))


def test_columns_that_another_character_separates_are_told(photos):
    with pytest.raises(InputError, match=r"photos.csv has ';' between its columns.*with ','"):
        load_folder(table(photos, "path;label\ncat/1.png;cat\n"))


def test_paths_and_options_that_are_none(photos, tmp_path):
    for path, says in (
        (tmp_path / "none", "does not exist: pass a folder, or a .csv"),
        (photos / "cat" / "1.png", "is no folder: pass one"),
    ):
        with pytest.raises(InputError, match=says):
            load_folder(path)
    for options, says in (
        ({"channels": 4}, "channels=4: pass 3 for RGB or 1"),
        ({"size": 8, "transform": abs}, "size=8 and a transform: pass one"),
        ({"transform": 8}, "transform is a int: pass a function"),
        ({"label_column": "label"}, "is a folder: path_column and label_column are of a table"),
    ):
        with pytest.raises(InputError, match=says):
            load_folder(photos, **options)
