"""scikit-learn for the data, the split and the metrics; PyTorch for the model."""

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_iris
from sklearn.metrics import accuracy_score, classification_report, confusion_matrix, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

X, y = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
X_train, X_test = torch.FloatTensor(X_train), torch.FloatTensor(X_test)
y_train, y_test = torch.LongTensor(y_train), torch.LongTensor(y_test)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss()
history = []
for epoch in range(30):
    y_pred = model(X_train)
    loss = criterion(y_pred, y_train)
    history.append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"result: {history[0]:.7f} {history[-1]:.7f}")

with torch.no_grad():
    probabilities = model(X_test).softmax(1)
y_hat = probabilities.argmax(1)
print(f"result: {accuracy_score(y_test, y_hat):.4f} {roc_auc_score(y_test, probabilities, multi_class='ovr'):.5f}")
print("result:", *confusion_matrix(y_test, y_hat).ravel())
print(classification_report(y_test, y_hat.numpy()))
print(f"result: {np.asarray(probabilities).max(axis=1).mean():.6f} {float(np.mean(history)):.6f}")
