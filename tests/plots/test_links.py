"""Link utilisation: shares that are those of the bytes sent."""

from __future__ import annotations

import numpy as np
import pytest

import simulator as sim
from simulator.described.load import job_from_document
from simulator.plots.links import build_links_figure, sent_share
from simulator.plots.style import save
from simulator.results.traffic import LinkLoad
from tests.factories import Pipeline


def result_of(**plan) -> sim.Result:
    document = {
        "model": {"base": "llama3.1-8b", "layers": 4},
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
        "batch": {"global": 16, "seq_len": 2048},
        "plan": plan,
    }
    return sim.simulate(job_from_document(document))


def test_each_slice_shows_its_mean_share():
    load = LinkLoad(0, "fabric", 10.0, np.array([0.0, 1.0, 3.0]), np.array([5.0, 10.0, 0.0]))
    assert sent_share(load, 4.0, 4).tolist() == pytest.approx([0.5, 1.0, 1.0, 0.0])
    assert sent_share(load, 4.0, 2).tolist() == pytest.approx([0.75, 0.5])
    assert sent_share(load, 4.0, 1).tolist() == pytest.approx([0.625])


def test_every_port_in_use_has_a_panel_with_a_row_per_class():
    figure = build_links_figure(result_of(tp=2, pp=4))
    headings = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert [heading.split(",")[0] for heading in headings] == ["scale-up links", "network cards"]
    images = [axes.images[0] for axes in figure.axes if axes.get_title(loc="left")]
    assert all(image.get_array().shape[0] == 4 for image in images)


def test_links_that_nothing_uses_are_said_so(tmp_path):
    quiet = Pipeline(stages=1, microbatches=2).result()
    save(build_links_figure(quiet), tmp_path / "links.png")
    texts = [text.get_text() for text in build_links_figure(quiet).texts]
    assert "no traffic on any link" in texts


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture_is_written(tmp_path, suffix):
    path = tmp_path / f"links{suffix}"
    save(build_links_figure(result_of(tp=2, pp=4)), path)
    assert path.stat().st_size > 3000
