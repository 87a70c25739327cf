"""Recurrent models against PyTorch's modules on packed sequences and the homework's equations."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.models.build import CELLS
from regard.models.recurrent import Cell, last_state, reverse

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


def torch_encoder(model, cell: type, layers: int, bidirectional: bool) -> nn.RNNBase:
    """PyTorch's multi-layer module with the model's weights."""
    encoder = model.encoder
    reference = cell(
        encoder.embedding.embedding_dim,
        encoder.forwards[0].hidden_dim,
        num_layers=layers,
        bidirectional=bidirectional,
        batch_first=True,
    ).double()
    for layer in range(layers):
        directions = [(encoder.forwards[layer], "")]
        directions += [(encoder.backwards[layer], "_reverse")] if bidirectional else []
        for module, suffix in directions:
            for name, parameter in module.cell.named_parameters():
                getattr(reference, name.replace("_l0", f"_l{layer}") + suffix).copy_(parameter)
    return reference


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_encoder_equals_pytorchs_on_packed_sequences(cell, layers, bidirectional, make, example):
    model = make(f"{cell}-{layers}-{'bidirectional' if bidirectional else 'unidirectional'}")
    reference = torch_encoder(model, CELLS[cell], layers, bidirectional)
    lengths = example.mask.sum(1)
    embedded = model.encoder.embedding(example.source)
    packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    output, last = reference(packed)
    expected, _ = pad_packed_sequence(output, batch_first=True)
    last = last[0] if cell == "lstm" else last  # [layers * directions, batch, hidden]
    by_layer = last.unflatten(0, (layers, -1)).permute(2, 0, 1, 3).flatten(2)
    states, last_states = model.encoder(example.source, example.mask)
    mask = example.mask[..., None]
    torch.testing.assert_close(states * mask, expected * mask)
    torch.testing.assert_close(last_states, by_layer)


@pytest.mark.parametrize("cell", CELLS)
def test_decoder_equals_pytorchs_from_the_bridged_state(cell, make, example):
    model = make(f"{cell}-2-bidirectional")
    memory = model.encode(example.source, example.mask)
    hidden_dim = model.decoder.cells[0].hidden_dim
    reference = CELLS[cell](7, hidden_dim, num_layers=2, batch_first=True).double()
    for layer, module in enumerate(model.decoder.cells):
        for name, parameter in module.cell.named_parameters():
            getattr(reference, name.replace("_l0", f"_l{layer}")).copy_(parameter)
    _, last_states = model.encoder(example.source, example.mask)
    bridged = torch.relu(last_states[:, -1] @ model.bridge.weight.T + model.bridge.bias)
    initial = bridged.reshape(5, 2, -1).transpose(0, 1).contiguous()  # [layers batch state]
    if cell == "lstm":
        h, c = initial[..., :hidden_dim], initial[..., hidden_dim:]
        initial = (h.contiguous(), c.contiguous())
    expected, _ = reference(model.embedding(example.target), initial)
    features = model.features(memory, example.target)
    torch.testing.assert_close(features[..., -hidden_dim:], expected)


def test_parallel_form_equals_the_homeworks_equations(make, example):
    """d_0 = s; d_i = GRU(W_d m_i, d_(i-1)); a_i = Attn(d_i, h); logits = W_o [a_i ; d_i] + b_o."""
    model = make("gru-1-bidirectional")
    logits = model(example.source, example.mask, example.target)
    hidden_dim = model.decoder.cells[0].hidden_dim
    gru = nn.GRUCell(7, hidden_dim).double()
    for name, parameter in model.decoder.cells[0].cell.named_parameters():
        getattr(gru, name.removesuffix("_l0")).copy_(parameter)
    w_q, w_k = model.decoder.attention.query.weight, model.decoder.attention.key.weight
    for row, length in enumerate(example.lengths):
        states, _ = model.encoder(*example.unpadded(row)[:2])
        h = states[0]
        sentence = torch.cat([h[length - 1, :hidden_dim], h[0, hidden_dim:]])
        d = torch.relu(model.bridge.weight @ sentence + model.bridge.bias)
        for i, token in enumerate(example.target[row]):
            d = gru(model.embedding.weight[token][None], d[None])[0]
            energy = (h @ w_k.T) @ (w_q @ d) / math.sqrt(len(w_q))
            a = energy.softmax(0) @ h
            expected = model.output.weight @ torch.cat([a, d]) + model.output.bias
            torch.testing.assert_close(logits[row, i], expected)


def test_the_sheets_form_equals_two_plain_rnns(make, example):
    """h_t = tanh(W z_t + U h_(t-1) + b); d_0 = h_T, without any map between them."""
    model = make("rnn-1-no-bridge")
    assert model.bridge is None
    logits = model(example.source, example.mask, example.target)
    attention = model.decoder.attention

    def run(cell: Cell, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        w_x, w_h, b_x, b_h = cell.cell.parameters()
        states = []
        for vector in x:
            state = torch.tanh(w_x @ vector + b_x + w_h @ state + b_h)
            states.append(state)
        return torch.stack(states)

    for row, length in enumerate(example.lengths):
        z = model.encoder.embedding.weight[example.source[row, :length]]
        h = run(model.encoder.forwards[0], z, torch.zeros(29, dtype=z.dtype))
        d = run(model.decoder.cells[0], model.embedding.weight[example.target[row]], h[-1])
        energy = (d @ attention.query.weight.T) @ (h @ attention.key.weight.T).T / math.sqrt(13)
        expected = model.output(torch.cat([energy.softmax(-1) @ h, d], dim=-1))
        torch.testing.assert_close(logits[row], expected)


def test_without_a_bridge_each_layer_starts_from_the_same_layer_of_the_encoder(make, example):
    model = make("gru-2-no-bridge")
    memory = model.encode(example.source, example.mask)
    assert memory.initial.shape == (5, 2, 29)
    torch.testing.assert_close(
        memory.initial[:, -1], memory.states[torch.arange(5), example.mask.sum(1) - 1]
    )
    x = model.encoder.embedding(example.source)
    first = model.encoder.forwards[0](x)[0][torch.arange(5), example.mask.sum(1) - 1]
    torch.testing.assert_close(memory.initial[:, 0], first)


def test_output_layer_equals_linear_dropout_relu_linear(make, tables, example):
    """The notebook's output layer: Linear, dropout, ReLU, Linear, on [context ; state]."""
    model = make("recurrent-output-hidden-parallel")
    without = make(tables["gru-1-bidirectional"])
    same = {name: without.state_dict()[name] for name in model.state_dict() if "output" not in name}
    model.load_state_dict(model.state_dict() | same)
    memory = model.encode(example.source, example.mask)
    features = without.features(without.encode(example.source, example.mask), example.target)
    layer = nn.Sequential(model.output_hidden, nn.Dropout(0.3), nn.ReLU(), model.output).eval()
    logits = model.project(model.features(memory, example.target))
    torch.testing.assert_close(logits, layer(features))


def test_dropout_applies_once_in_the_output_layer(make, example):
    """Dropout before and after a ReLU is the same; the input of the hidden layer has none."""
    model = make("recurrent-output-hidden-parallel")
    memory = model.encode(example.source, example.mask)
    model.dropout.train()
    dropped = model.features(memory, example.target)
    model.eval()
    kept = model.features(memory, example.target)
    is_dropped = (dropped == 0) & (kept > 0)
    assert 0.2 < is_dropped.sum() / (kept > 0).sum() < 0.4
    torch.testing.assert_close(dropped[~is_dropped], kept[~is_dropped] / 0.7, rtol=1e-4, atol=0)


def test_read_padding_equals_pytorch_without_masks_in_training_only(make, example):
    model = make("homework-notebook")
    model.encoder.dropout.p = 0.0
    reference = torch_encoder(model, nn.GRU, 1, bidirectional=True)
    expected, last = reference(model.encoder.embedding(example.source))  # padding is read
    masked = model.encode(example.source, example.mask)
    model.train()
    memory = model.encode(example.source, example.mask)
    torch.testing.assert_close(memory.states, expected)
    sentence = torch.cat([last[0], last[1]], dim=-1)
    torch.testing.assert_close(memory.initial[:, 0], torch.relu(model.bridge(sentence)))
    assert memory.mask.all()  # attention attends to padding
    assert torch.equal(masked.mask, example.mask)
    assert not torch.allclose(masked.initial, memory.initial)
    longest = slice(0, 1)  # a row without padding
    torch.testing.assert_close(masked.initial[longest], memory.initial[longest])


@pytest.mark.parametrize("form", ["input-feeding", "tutorial"])
def test_stepwise_forms_equal_their_equations(form, make, tables, example):
    """d = cell([x ; last a]) then a, or a from [last d ; x] then d = cell(ReLU(W_c [x ; a] + b_c))."""
    table = tables["gru-1-bidirectional"]
    model = make(table | {"decoder": {"kind": form}})
    logits = model(example.source, example.mask, example.target)
    attention, cell = model.decoder.attention, model.decoder.cells[0].cell
    gru = nn.GRUCell(cell.input_size, cell.hidden_size).double()
    for name, parameter in cell.named_parameters():
        getattr(gru, name.removesuffix("_l0")).copy_(parameter)

    def attend(query: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        energy = (h @ attention.key.weight.T) @ (attention.query.weight @ query)
        return (energy / math.sqrt(len(attention.key.weight))).softmax(0) @ h

    for row in range(len(example.lengths)):
        memory = model.encode(*example.unpadded(row)[:2])
        h, d = memory.states[0], memory.initial[0, 0]
        a = torch.zeros_like(h[0])
        for i, token in enumerate(example.target[row]):
            x = model.embedding.weight[token]
            if form == "input-feeding":
                d = gru(torch.cat([x, a])[None], d[None])[0]
                a = attend(d, h)
                features = torch.cat([a, d])
            else:
                a = attend(torch.cat([d, x]), h)
                z = torch.relu(model.decoder.combine(torch.cat([x, a])))
                d = features = gru(z[None], d[None])[0]
            expected = model.output.weight @ features + model.output.bias
            torch.testing.assert_close(logits[row, i], expected)


def test_positions_are_added_to_the_source_embeddings(make, example):
    model = make("recurrent-position-sinusoidal-odd")
    without_positions = make("gru-1-bidirectional")
    without_positions.load_state_dict(model.state_dict())
    position_ids = torch.arange(11).expand(5, 11)
    x = model.encoder.embedding(example.source)
    embedded = model.encoder.position.embed(x, position_ids)
    assert not torch.allclose(embedded, x)
    expected = without_positions.encoder.forwards[0].cell(embedded)[0]
    states, _ = model.encoder(example.source, example.mask)
    torch.testing.assert_close(states[..., :29], expected)


def test_bottleneck_does_not_read_the_encoder_states(make, example):
    model = make("bottleneck-parallel")
    memory = model.encode(example.source, example.mask)
    before = model.features(memory, example.target)
    memory.states.zero_()
    assert torch.equal(model.features(memory, example.target), before)
    assert model.attention_weights(example.source, example.mask, example.target) == {}


@pytest.mark.parametrize("cell", CELLS)
def test_cell_continues_from_its_state(cell):
    torch.manual_seed(1)
    module = Cell(CELLS[cell], 7, 3).double()
    x = torch.randn(2, 5, 7, dtype=torch.float64)
    expected, expected_state = module(x)
    first, state = module(x[:, :2])
    second, state = module(x[:, 2:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), expected)
    torch.testing.assert_close(state, expected_state)


def test_reverse_keeps_padding_at_the_end_and_is_its_own_inverse():
    x = torch.arange(10.0).reshape(2, 5, 1)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    reversed_x = reverse(x, mask)
    assert reversed_x[..., 0].tolist() == [[4, 3, 2, 1, 0], [7, 6, 5, 8, 9]]
    assert torch.equal(reverse(reversed_x, mask), x)
    assert last_state(x, mask)[:, 0].tolist() == [4, 7]
