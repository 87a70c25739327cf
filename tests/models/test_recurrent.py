"""The recurrent family against PyTorch's packed modules and the homework's equations."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.models.build import CELLS
from regard.models.recurrent import Cell, last_state, reverse

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


def torchs_encoder(model, kind: type, layers: int, both: bool) -> nn.RNNBase:
    """PyTorch's own stack with our weights."""
    encoder = model.encoder
    theirs = kind(
        encoder.embedding.embedding_dim,
        encoder.forwards[0].hidden,
        num_layers=layers,
        bidirectional=both,
        batch_first=True,
    ).double()
    for layer in range(layers):
        sides = [(encoder.forwards[layer], "")]
        sides += [(encoder.backwards[layer], "_reverse")] if both else []
        for ours, suffix in sides:
            for name, parameter in ours.cell.named_parameters():
                getattr(theirs, name.replace("_l0", f"_l{layer}") + suffix).copy_(parameter)
    return theirs


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_the_encoder_is_torchs_on_packed_sequences(cell, layers, both, make, example):
    model = make(f"{cell}-{layers}-{'both' if both else 'one'}")
    theirs = torchs_encoder(model, CELLS[cell], layers, both)
    lengths = example.mask.sum(1)
    embedded = model.encoder.embedding(example.source)
    packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    output, last = theirs(packed)
    wanted, _ = pad_packed_sequence(output, batch_first=True)
    last = last[0] if cell == "lstm" else last  # [layers * directions, batch, hidden]
    summary = torch.cat([last[-2], last[-1]], dim=-1) if both else last[-1]
    states, found = model.encoder(example.source, example.mask)
    real = example.mask[..., None]
    torch.testing.assert_close(states * real, wanted * real)
    torch.testing.assert_close(found, summary)


@pytest.mark.parametrize("cell", CELLS)
def test_the_decoder_is_torchs_from_the_bridged_start(cell, make, example):
    model = make(f"{cell}-2-both")
    memory = model.encode(example.source, example.mask)
    hidden = model.decoder.cells[0].hidden
    theirs = CELLS[cell](7, hidden, num_layers=2, batch_first=True).double()
    for layer, ours in enumerate(model.decoder.cells):
        for name, parameter in ours.cell.named_parameters():
            getattr(theirs, name.replace("_l0", f"_l{layer}")).copy_(parameter)
    _, summary = model.encoder(example.source, example.mask)
    bridged = torch.relu(summary @ model.bridge.weight.T + model.bridge.bias)
    start = bridged.reshape(5, 2, -1).transpose(0, 1).contiguous()  # [layers batch state]
    if cell == "lstm":
        start = (start[..., :hidden].contiguous(), start[..., hidden:].contiguous())
    wanted, _ = theirs(model.embedding(example.target), start)
    features = model.features(memory, example.target)
    torch.testing.assert_close(features[..., -hidden:], wanted)


def test_the_whole_model_is_the_homeworks_equations(make, example):
    """d_0 = s; d_i = GRU(W_d m_i, d_(i-1)); a_i = Attn(d_i, h); logits = W_o [a_i ; d_i] + b_o."""
    model = make("gru-1-both")
    logits = model(example.source, example.mask, example.target)
    hidden = model.decoder.cells[0].hidden
    gru = nn.GRUCell(7, hidden).double()
    for name, parameter in model.decoder.cells[0].cell.named_parameters():
        getattr(gru, name.removesuffix("_l0")).copy_(parameter)
    w_q, w_k = model.decoder.attention.query.weight, model.decoder.attention.key.weight
    for row, length in enumerate(example.lengths):
        states, _ = model.encoder(*example.alone(row)[:2])
        h = states[0]
        forwards, backwards = h[length - 1, :hidden], h[0, hidden:]
        s = torch.relu(model.bridge.weight @ torch.cat([forwards, backwards]) + model.bridge.bias)
        d = s
        for i, token in enumerate(example.target[row]):
            d = gru(model.embedding.weight[token][None], d[None])[0]
            energy = (h @ w_k.T) @ (w_q @ d) / math.sqrt(len(w_q))
            a = energy.softmax(0) @ h
            wanted = model.output.weight @ torch.cat([a, d]) + model.output.bias
            torch.testing.assert_close(logits[row, i], wanted)


@pytest.mark.parametrize("form", ["input-feeding", "tutorial"])
def test_the_forms_that_feed_back_are_their_equations(form, make, tables, example):
    """d = cell([x ; last a]) then a, or a from [last d ; x] then d = cell(ReLU(W_c [x ; a] + b_c))."""
    table = tables["gru-1-both"]
    model = make(table | {"decoder": {"kind": form}})
    logits = model(example.source, example.mask, example.target)
    attention, ours = model.decoder.attention, model.decoder.cells[0].cell
    gru = nn.GRUCell(ours.input_size, ours.hidden_size).double()
    for name, parameter in ours.named_parameters():
        getattr(gru, name.removesuffix("_l0")).copy_(parameter)

    def look(query: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        energy = (h @ attention.key.weight.T) @ (attention.query.weight @ query)
        return (energy / math.sqrt(len(attention.key.weight))).softmax(0) @ h

    for row in range(len(example.lengths)):
        memory = model.encode(*example.alone(row)[:2])
        h, d = memory.states[0], memory.initial[0, 0]
        a = torch.zeros_like(h[0])
        for i, token in enumerate(example.target[row]):
            x = model.embedding.weight[token]
            if form == "input-feeding":
                d = gru(torch.cat([x, a])[None], d[None])[0]
                a = look(d, h)
                features = torch.cat([a, d])
            else:
                a = look(torch.cat([d, x]), h)
                z = torch.relu(model.decoder.combine(torch.cat([x, a])))
                d = features = gru(z[None], d[None])[0]
            wanted = model.output.weight @ features + model.output.bias
            torch.testing.assert_close(logits[row, i], wanted)


def test_positions_are_added_to_the_embedded_source(make, tables, example):
    with_places = make("recurrent-at-sinusoidal-odd")
    without = make("gru-1-both")
    without.load_state_dict(with_places.state_dict())
    at = torch.arange(11).expand(5, 11)
    x = with_places.encoder.embedding(example.source)
    placed = with_places.encoder.position.embed(x, at)
    assert not torch.allclose(placed, x)
    wanted = without.encoder.forwards[0].cell(placed)[0]
    states, _ = with_places.encoder(example.source, example.mask)
    torch.testing.assert_close(states[..., :29], wanted)


def test_the_bottleneck_lets_nothing_else_through(make, example):
    model = make("bottleneck-parallel")
    memory = model.encode(example.source, example.mask)
    before = model.features(memory, example.target)
    memory.states.zero_()
    assert torch.equal(model.features(memory, example.target), before)
    assert model.attention_weights(example.source, example.mask, example.target) == {}


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_read_in_two_parts_is_the_cell_read_whole(cell):
    torch.manual_seed(1)
    ours = Cell(CELLS[cell], 7, 3).double()
    x = torch.randn(2, 5, 7, dtype=torch.float64)
    whole, last = ours(x)
    first, state = ours(x[:, :2])
    second, end = ours(x[:, 2:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(end, last)


def test_reverse_turns_the_real_part_and_is_its_own_inverse():
    x = torch.arange(10.0).reshape(2, 5, 1)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    turned = reverse(x, mask)
    assert turned[..., 0].tolist() == [[4, 3, 2, 1, 0], [7, 6, 5, 8, 9]]
    assert torch.equal(reverse(turned, mask), x)
    assert last_state(x, mask)[:, 0].tolist() == [4, 7]
