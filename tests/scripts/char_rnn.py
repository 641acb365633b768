"""A character model with a recurrent cell written by hand and nn.LSTM; the hidden state is carried and detached."""

import torch
import torch.nn as nn

text = "hello world, hello torch, hello tensors. " * 4
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
torch.manual_seed(0)


class CharRNN(nn.Module):
    def __init__(self, vocabulary, hidden=24):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.rnn = nn.LSTM(8, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, x, state=None):
        out, state = self.rnn(self.embedding(x), state)
        return self.head(out), state


model = CharRNN(len(chars))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = None
for i in range(0, len(data) - 21, 20):
    x, y = data[i : i + 20].unsqueeze(0), data[i + 1 : i + 21].unsqueeze(0)
    logits, state = model(x, state)
    state = tuple(s.detach() for s in state)
    loss = nn.functional.cross_entropy(logits.view(-1, len(chars)), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5)
    optimizer.step()
    print(f"result: {loss.item():.7f}")

model.eval()
index, state, out = data[:1].view(1, 1), None, []
with torch.no_grad():
    for _ in range(20):
        logits, state = model(index, state)
        index = torch.multinomial(logits[0, -1].softmax(0), 1).view(1, 1)
        out.append(chars[index.item()])
print("".join(out))

hidden = torch.zeros(1, 16)
w_x, w_h = torch.randn(len(chars), 16) * 0.1, torch.randn(16, 16) * 0.1
for c in text[:10]:
    hidden = torch.tanh(nn.functional.one_hot(torch.tensor([stoi[c]]), len(chars)).float() @ w_x + hidden @ w_h)
print(f"result: {hidden.abs().sum().item():.6f}")
