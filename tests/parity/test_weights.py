"""The real Whisper base: complete for Transformers, and the same model that CTranslate2 runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.huggingface import in_transformers

from soothsay.targets.load import ModelFiles, ctranslate2_directory


@pytest.mark.slow
def test_base_is_a_model_of_transformers(base_files: ModelFiles) -> None:
    in_transformers(base_files)
    assert sum(t.numel() for t in base_files.tensors.values()) == 72_593_920
    assert all(t.dtype == torch.float16 for t in base_files.tensors.values())


@pytest.mark.slow
def test_base_computes_what_ctranslate2_computes(base_files: ModelFiles, tmp_path: Path) -> None:
    """The names are right, not only complete: exchanged q and v, or layers, would show here."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra bench")
    theirs = ctranslate2.models.Whisper(
        str(ctranslate2_directory(base_files, tmp_path)), compute_type="float32", intra_threads=1
    )
    ours = in_transformers(base_files).float()
    features = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0)) * 0.3
    encoded = theirs.encode(ctranslate2.StorageView.from_array(features.numpy()))
    with torch.no_grad():
        hidden = ours.model.encoder(features).last_hidden_state
        torch.testing.assert_close(
            torch.from_numpy(np.array(encoded)), hidden, atol=2e-3, rtol=1e-3
        )
        logits = ours(input_features=features, decoder_input_ids=torch.tensor([[50258]])).logits
    (languages,) = theirs.detect_language(encoded)
    expected = logits[0, -1, 50259:50358].softmax(-1).sort(descending=True).values[:5]
    found = torch.tensor([probability for _, probability in languages[:5]])
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-2)
