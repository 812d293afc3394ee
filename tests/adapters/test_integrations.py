"""Adapters of frameworks and vector stores against the real packages, in this process."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from laplace_metric import integrations
from laplace_metric.calibration import calibrate_scores
from laplace_metric.errors import InputError, MissingPackageError
from laplace_metric.integrations import passed_on, read_hits

PAGE = Path(__file__).parents[2] / "docs" / "decisions.md"
SECTION = "## In your framework and your vector store"
K, N, D = 5, 120, 8


@pytest.fixture(scope="module")
def space():
    """Items, queries near the first half of them or anywhere, and the item that each is of."""
    g = np.random.default_rng(0)
    items = g.normal(size=(N, D)).astype(np.float32)
    of = g.integers(0, N, 240)
    near = np.arange(240) % 3 > 0
    queries = np.where(near[:, None], items[of] + 0.3 * g.normal(size=(240, D)), 2 * g.normal(
        size=(240, D)))  # fmt: skip
    return (
        items,
        queries.astype(np.float32),
        {q: [int(of[q])] if near[q] else [] for q in range(240)},
    )


@pytest.fixture(scope="module")
def cosine(space):
    """A rule for the five nearest by cosine, and their similarities and places."""
    items, queries, qrels = space
    similarity = unit(queries) @ unit(items).T
    rows = np.argsort(-similarity, 1)[:, :K]
    scores = np.take_along_axis(similarity, rows, 1).astype(float)
    return calibrate_scores(scores, qrels, items=rows).guarantee(precision=0.8), scores, rows


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def true_scores(items, queries, metric):
    """What each metric means, in NumPy."""
    dot = queries @ items.T
    difference = queries[:, None] - items
    return {
        "cosine": unit(queries) @ unit(items).T,
        "1 - cosine": 1 - unit(queries) @ unit(items).T,
        "dot": dot,
        "1 - dot": 1 - dot,
        "-dot": -dot,
        "l2": np.sqrt((difference**2).sum(-1)),
        "squared": (difference**2).sum(-1),
        "l1": np.abs(difference).sum(-1),
    }[metric]


def check(hits, space, meaning, kind):
    """Ids and scores are those of NumPy, and a rule of them decides as the plain call."""
    items, queries, qrels = space
    wanted = true_scores(items, queries, meaning)
    order = np.argsort(wanted if kind == "distance" else -wanted, 1)[:, :K]
    assert hits.kind == kind
    ranked = np.take_along_axis(wanted, order, 1)
    np.testing.assert_allclose(hits.scores, ranked, rtol=1e-3, atol=1e-4)
    chosen = np.take_along_axis(wanted, np.array([*hits.items.values()]).astype(int), 1)
    np.testing.assert_allclose(chosen, ranked, rtol=1e-3, atol=1e-4)
    rule = calibrate_scores(hits.scores, qrels, items=hits.items, kind=kind).guarantee(recall=0.5)
    accepted = rule(hits.scores).answered
    assert 0 < accepted.sum() < len(accepted)
    p = rule.scores.probability(hits.scores)
    for q in range(0, 240, 7):
        one = passed_on(rule, hits.scores[q].tolist())
        np.testing.assert_allclose(one, p[q] if accepted[q] else [], atol=1e-6)


# Stores.


def test_sentence_transformers(space):
    util = pytest.importorskip("sentence_transformers.util")
    items, queries, _ = space
    answers = util.semantic_search(queries, items, top_k=K)
    check(read_hits("sentence-transformers", answers, metric="cosine"), space, "cosine",
          "similarity")  # fmt: skip
    answers = util.semantic_search(queries, items, top_k=K, score_function=util.dot_score)
    check(read_hits("sentence-transformers", answers, metric="dot"), space, "dot", "similarity")


@pytest.mark.parametrize(
    ("metric", "meaning", "kind"),
    [
        ("Cosine", "cosine", "similarity"),
        ("Dot", "dot", "similarity"),
        ("Euclid", "l2", "distance"),
        ("Manhattan", "l1", "distance"),
    ],
)
def test_qdrant(space, metric, meaning, kind):
    qdrant = pytest.importorskip("qdrant_client")
    items, queries, _ = space
    client = qdrant.QdrantClient(":memory:")
    how = qdrant.models.VectorParams(size=D, distance=metric)
    client.create_collection("items", vectors_config=how)
    points = [qdrant.models.PointStruct(id=i, vector=x.tolist()) for i, x in enumerate(items)]
    client.upsert("items", points)
    asked = [qdrant.models.QueryRequest(query=x.tolist(), limit=K) for x in queries]
    answers = client.query_batch_points("items", requests=asked)
    check(read_hits("qdrant", answers, metric=metric), space, meaning, kind)


@pytest.mark.parametrize(
    ("metric", "meaning"), [("l2", "squared"), ("cosine", "1 - cosine"), ("ip", "1 - dot")]
)
def test_chroma(space, metric, meaning, monkeypatch):
    monkeypatch.setenv("ANONYMIZED_TELEMETRY", "False")
    chromadb = pytest.importorskip("chromadb")
    items, queries, _ = space
    client = chromadb.EphemeralClient()
    made = client.create_collection(
        f"items-{metric}", configuration={"hnsw": {"space": metric, "ef_search": N}}
    )
    made.add(ids=[str(i) for i in range(N)], embeddings=items)
    answers = made.query(query_embeddings=queries, n_results=K, include=["distances"])
    check(read_hits("chroma", answers, metric=metric), as_text(space), meaning, "distance")


def as_text(space):
    items, queries, qrels = space
    return items, queries, {q: [str(i) for i in ids] for q, ids in qrels.items()}


@pytest.mark.parametrize(
    ("metric", "meaning"), [("l2", "squared"), ("cosine", "1 - cosine"), ("dot", "1 - dot")]
)
def test_lancedb(space, metric, meaning, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    items, queries, _ = space
    rows = [{"id": i, "vector": x} for i, x in enumerate(items)]
    table = lancedb.connect(tmp_path).create_table("items", rows)
    answers = [table.search(x).distance_type(metric).limit(K).to_list() for x in queries]
    check(read_hits("lancedb", answers, metric=metric), space, meaning, "distance")


@pytest.mark.parametrize(
    ("metric", "meaning", "kind"),
    [
        ("COSINE", "cosine", "similarity"),
        ("IP", "dot", "similarity"),
        ("L2", "squared", "distance"),
    ],
)
def test_milvus_lite(space, metric, meaning, kind, tmp_path):
    pytest.importorskip("milvus_lite")
    milvus = pytest.importorskip("pymilvus")
    items, queries, _ = space
    client = milvus.MilvusClient(str(tmp_path / "milvus.db"))
    client.create_collection("items", dimension=D, metric_type=metric)
    client.insert("items", [{"id": i, "vector": x.tolist()} for i, x in enumerate(items)])
    answers = client.search("items", data=queries.tolist(), limit=K)
    check(read_hits("milvus", answers, metric=metric), space, meaning, kind)
    client.close()


@pytest.fixture(scope="module")
def postgres():
    pytest.importorskip("pgvector")
    psycopg = pytest.importorskip("psycopg")
    from benchmarks.examples.engines.postgres_server import postgres_programs, temporary_server

    try:
        postgres_programs()
    except MissingPackageError as error:
        pytest.skip(str(error))
    with (
        temporary_server() as server,
        psycopg.connect(server.address, autocommit=True) as connection,
    ):
        connection.execute("CREATE EXTENSION vector")
        yield connection


@pytest.mark.parametrize(
    ("operator", "meaning"), [("<->", "l2"), ("<=>", "1 - cosine"), ("<#>", "-dot"), ("<+>", "l1")]
)
def test_pgvector(space, postgres, operator, meaning):
    items, queries, _ = space
    postgres.execute(f"CREATE TEMP TABLE IF NOT EXISTS items (id int, v vector({D}))")
    postgres.execute("TRUNCATE items")
    for i, x in enumerate(items):
        postgres.execute("INSERT INTO items VALUES (%s, %s)", [i, str(x.tolist())])
    ask = f"SELECT id, v {operator} %s::vector AS d FROM items ORDER BY d LIMIT {K}"
    answers = [postgres.execute(ask, [str(x.tolist())]).fetchall() for x in queries]
    check(read_hits("pgvector", answers, metric=operator), space, meaning, "distance")


# Frameworks.


def verdicts(cosine, ask):
    """``ask(q)`` gives (place, probability) of what is passed on of query q."""
    rule, scores, rows = cosine
    accepted, p = rule(scores).answered, rule.scores.probability(scores)
    for q in range(0, 240, 11):
        found = ask(q)
        assert [place for place, _ in found] == (rows[q].tolist() if accepted[q] else [])
        np.testing.assert_allclose([each for _, each in found], p[q] if found else [], atol=1e-6)
    assert 0 < accepted[::11].sum() < len(accepted[::11])


def test_langchain(space, cosine):
    pytest.importorskip("langchain_core")
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    items, queries, _ = space

    class Table(Embeddings):
        def embed_documents(self, texts):
            return [items[int(text)].astype(float).tolist() for text in texts]

        def embed_query(self, text):
            return queries[int(text)].astype(float).tolist()

    store = InMemoryVectorStore(Table())
    store.add_texts([str(i) for i in range(N)], [{"page": i} for i in range(N)])
    retriever = integrations.langchain_retriever(cosine[0], store)

    def ask(q):
        found = retriever.invoke(str(q))
        assert all(x.metadata["page"] == int(x.page_content) for x in found)
        return [(int(x.page_content), x.metadata["match_probability"]) for x in found]

    verdicts(cosine, ask)
    assert "match_probability" not in store.similarity_search("0", 1)[0].metadata


def test_llama_index(cosine):
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import NodeWithScore, TextNode

    processor = integrations.llama_index_postprocessor(cosine[0])
    nodes = [TextNode(text=str(i)) for i in range(N)]

    def ask(q):
        _, scores, rows = cosine
        hits = [
            NodeWithScore(node=nodes[i], score=s) for i, s in zip(rows[q], scores[q], strict=True)
        ]
        found = processor.postprocess_nodes(hits, query_str="?")
        return [(int(x.node.text), x.node.metadata["match_probability"]) for x in found]

    verdicts(cosine, ask)
    assert not nodes[0].metadata
    with pytest.raises(InputError, match="hit.*no score"):
        processor.postprocess_nodes([NodeWithScore(node=nodes[0])])


def test_haystack(space, cosine):
    haystack = pytest.importorskip("haystack")
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    items, queries, _ = space
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(
        [haystack.Document(content=str(i), embedding=x.tolist()) for i, x in enumerate(items)]
    )
    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=K))
    pipeline.add_component("decide", integrations.haystack_component(cosine[0]))
    pipeline.connect("retriever", "decide")

    def ask(q):
        found = pipeline.run({"retriever": {"query_embedding": queries[q].tolist()}})
        documents = found["decide"]["documents"]
        return [(int(x.content), x.meta["match_probability"]) for x in documents]

    verdicts(cosine, ask)


# Without a package.


def test_what_is_passed_on(cosine):
    rule, scores, _ = cosine
    sure = int(np.argmax(scores[:, 0]))
    assert passed_on(rule, []) == []
    assert passed_on(rule, scores[int(np.argmin(scores[:, 0]))].tolist()) == []
    assert len(passed_on(rule, scores[sure].tolist())) == K
    kept = int(rule.scores.keep_relevant(scores[sure : sure + 1], 0.2)[0])
    assert len(passed_on(rule, scores[sure].tolist(), 0.2)) == kept < K
    short = passed_on(rule, scores[sure, :2].tolist())
    row = [[*scores[sure, :2], *[-np.inf] * (K - 2)]]
    np.testing.assert_array_equal(short, rule.scores.probability(row)[0, :2])
    with pytest.raises(InputError, match="6 hits.*pass 5"):
        passed_on(rule, [0.9] * 6)


def test_lists_of_unequal_length_are_padded():
    answers = [[(1, 0.2), (2, 0.5)], [(3, 0.1)]]
    hits = read_hits("pgvector", answers, metric="<->", k=3)
    np.testing.assert_array_equal(hits.scores, [[0.2, 0.5, np.inf], [0.1, np.inf, np.inf]])
    assert hits.items == {0: [1, 2], 1: [3]}


@pytest.mark.parametrize(
    ("store", "answers", "change", "message"),
    [
        ("pinecone", [], {}, "store"),
        ("qdrant", [], {"metric": "jaccard"}, "metric"),
        ("milvus", [[{"x": 1}]], {"metric": "L2"}, "answers are not those of milvus"),
        ("qdrant", [[(1, 2)]], {}, "answers are not those of qdrant"),
        ("pgvector", [[(1, 0.1), (2, 0.2)]], {"metric": "<->", "k": 1}, "2 hits of a query"),
    ],
)
def test_other_answers_are_named(store, answers, change, message):
    with pytest.raises(InputError, match=message):
        read_hits(store, answers, **{"metric": "cosine"} | change)


def test_a_missing_framework_is_named(cosine, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(integrations, "import_module", missing)
    for make in (
        lambda: integrations.langchain_retriever(cosine[0], None),
        lambda: integrations.llama_index_postprocessor(cosine[0]),
        lambda: integrations.haystack_component(cosine[0]),
    ):
        with pytest.raises(MissingPackageError, match="pip install"):
            make()


# The page.

BLOCKS = re.findall(
    r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?",
    PAGE.read_text(encoding="utf-8").split(SECTION)[1],
    flags=re.S,
)


NAMES = [block.split()[1] for block, _ in BLOCKS[1:]]


@pytest.mark.parametrize(("block", "shown"), BLOCKS[1:], ids=NAMES)
def test_the_page_runs(block, shown, tmp_path, monkeypatch, capsys):
    """Each block of the section after its first, which all share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANONYMIZED_TELEMETRY", "False")  # of Chroma
    scope: dict[str, object] = {}
    exec(BLOCKS[0][0], scope)
    for module in re.findall(r"^(?:from|import) ([\w.]+)", block, flags=re.M):
        pytest.importorskip(module)
    exec(block, scope)
    if shown:
        assert capsys.readouterr().out == shown


def test_what_is_not_a_rule_is_refused_by_name(cosine):
    rule, scores, _ = cosine
    for ask in (
        lambda: integrations.langchain_retriever(object(), rule),
        lambda: integrations.llama_index_postprocessor(object()),
        lambda: integrations.haystack_component(object()),
    ):
        with pytest.raises(InputError, match="rule is a object.*pass a rule"):
            ask()
    with pytest.raises(InputError, match=r"rule.*ScoreCalibration.*calibration\.guarantee\("):
        passed_on(rule.scores, scores[0])


def test_hits_of_a_store_are_shown_in_a_few_lines():
    answers = [[{"corpus_id": q, "score": 0.5}] for q in range(5_000)]
    shown = repr(read_hits("sentence-transformers", answers, metric="cosine"))
    assert shown.startswith("StoreHits: hits of Q queries")
    assert "ids of 5,000 hits" in shown
    assert len(shown) < 200
