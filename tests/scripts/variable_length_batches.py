"""Padded batches, pack_padded_sequence, a collate function, a weighted sampler, pretrained embeddings from NumPy."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, WeightedRandomSampler

rng = np.random.RandomState(0)
sentences = [(rng.randint(1, 20, size=rng.randint(3, 9)), i % 2) for i in range(24)]


def collate(batch):
    batch = sorted(batch, key=lambda s: -len(s[0]))
    tokens = [torch.from_numpy(s).long() for s, _ in batch]
    lengths = torch.tensor([len(t) for t in tokens])
    return pad_sequence(tokens, batch_first=True), lengths, torch.tensor([label for _, label in batch])


class Tagger(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.from_numpy(vectors), freeze=False, padding_idx=0)
        self.gru = nn.GRU(vectors.shape[1], 12, batch_first=True, bidirectional=True)
        self.out = nn.Linear(24, 2)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        mask = (tokens != 0).unsqueeze(-1)
        return self.out((states * mask).sum(1) / lengths.unsqueeze(1))


torch.manual_seed(0)
model = Tagger(rng.randn(20, 6).astype(np.float32))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
sampler = WeightedRandomSampler(torch.ones(len(sentences)), len(sentences))
for epoch in range(2):
    for tokens, lengths, labels in DataLoader(sentences, batch_size=8, sampler=sampler, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(tokens, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"result: {loss.item():.7f}")
assert model.embedding.weight.grad is not None
