"""The text quickstart: a small language model of English prose, evaluated by perplexity and H - L."""

from pathlib import Path
from typing import Any

from cpc.data.store.atomic import write_atomically
from cpc.data.synthetic.prose import sentences
from cpc.data.text.lines import EMBEDDED
from cpc.quickstart.recipe import Config, Recipe, Study, part, pretraining

NUM_TOKENS, DIM = 1000, 100
CHOSEN_ON = (
    "The recipe is that of configs/text/cpu_small.yaml, whose expected perplexity is measured on the valid split; the "
    "perplexity of this page is that of the test split."
)
HEADING = """<h1>cpc quickstart: what a small language model learnt</h1>
<p>The quality of predictions of the next word of held-out text, with and without a context; and the information that
contexts hold about the next word, during training and at its end.</p>
"""
HOW_TO_READ = """<p><b>H - L.</b> <i>L</i> is the cross-entropy of the full softmax over all tokens, on a whole split,
and <i>H</i> the entropy of the split's own token frequencies, the lowest cross-entropy of any model without a context.
H - L is a lower bound on the information between contexts and the next token, and never exceeds H.</p>
<p><b>Perplexity</b> is exp L: the number of equally likely tokens that would be as hard to predict. It is
exp H for a model that knows only the frequencies of the split.</p>
"""


def make(corpus: Path, seed: int) -> tuple[dict[str, Path], dict[str, Any]]:
    """Write the prose, one sentence per line; the seed does not change the prose.

    The splits depend on the name of the file, so they are the same as with `--data.source embedded`.
    """
    path, text = corpus / EMBEDDED, "\n".join(sentences()) + "\n"
    if not path.exists():
        corpus.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as new:
            new.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        raise ValueError(f"{path} holds other prose than this Python ships with: remove it, or name another --corpus")
    return {"prose": path}, {"num_tokens": NUM_TOKENS}


def config(source: Path, seed: int) -> Config:
    """Return the config of configs/text/cpu_small.yaml."""
    shares: Config = {"valid_share": 0.1, "test_share": 0.1}
    chunks: Config = {"lower_case": True, "chunk_tokens": 20, "batch_size": 16}
    return pretraining(
        (50, 100, 200),
        part("data.Text", source=str(source), **chunks, **shares),
        encoder=part("encoders.TokenEncoder", num_tokens=NUM_TOKENS, dim=DIM, dropout=0.4, is_tied=True),
        context=part("contexts.LSTM", dim=DIM),
        predictor=part("predictors.Bilinear", num_steps=1, dropout=0.4),
        loss=part(
            "losses.ClassTableLoss",
            table=part("candidates.ClassTable", num_classes=NUM_TOKENS, dim=DIM, has_bias=True),
            objective="sampled_softmax",
            sampler=part("candidates.samplers.LogUniform", num_classes=NUM_TOKENS),
            num_sampled=100,
        ),
        learning_rate=3e-3,
    )


RECIPE = Recipe(
    making="prose",
    make=make,
    chosen_on=CHOSEN_ON,
    studies={"prose": Study(config=config, num_steps=1200, evaluation={"split": "test"})},
    heading=HEADING,
    how_to_read=[HOW_TO_READ],
    facts={"num_tokens": "{} tokens"},
)
