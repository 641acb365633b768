"""torchmetrics on device tensors: the CPU's values, kept and computed on the device."""

import copy

import pytest
import torch

metrics = pytest.importorskip("torchmetrics", exc_type=ImportError)

N, CLASSES = 40, 5
MULTI = dict(task="multiclass", num_classes=CLASSES)


def scores():
    return torch.randn(N, CLASSES).softmax(-1), torch.randint(CLASSES, (N,))


def binary():
    return torch.rand(N), torch.randint(2, (N,))


def labels():
    return torch.rand(N, CLASSES), torch.randint(2, (N, CLASSES))


def numbers():
    return torch.randn(N), torch.randn(N)


def images():
    return torch.rand(2, 3, 24, 24), torch.rand(2, 3, 24, 24)


def rows():
    return torch.randn(N, CLASSES), torch.randn(N, CLASSES)


METRICS = {
    "accuracy": (lambda: metrics.Accuracy(**MULTI), scores),
    "accuracy_top3_macro": (lambda: metrics.Accuracy(**MULTI, top_k=3, average="macro"), scores),
    "accuracy_multilabel": (lambda: metrics.Accuracy(task="multilabel", num_labels=CLASSES), labels),
    "f1": (lambda: metrics.F1Score(**MULTI, average="macro"), scores),
    "precision": (lambda: metrics.Precision(**MULTI, average="weighted"), scores),
    "recall": (lambda: metrics.Recall(**MULTI, average=None), scores),
    "confusion": (lambda: metrics.ConfusionMatrix(**MULTI, normalize="true"), scores),
    "cohen_kappa": (lambda: metrics.CohenKappa(**MULTI), scores),
    "matthews": (lambda: metrics.MatthewsCorrCoef(**MULTI), scores),
    "jaccard": (lambda: metrics.JaccardIndex(**MULTI), scores),
    "auroc": (lambda: metrics.AUROC(**MULTI), scores),
    "auroc_binary": (lambda: metrics.AUROC(task="binary"), binary),
    "auroc_thresholds": (lambda: metrics.AUROC(task="binary", thresholds=11), binary),
    "average_precision": (lambda: metrics.AveragePrecision(task="binary"), binary),
    "roc": (lambda: metrics.ROC(task="binary"), binary),
    "calibration": (lambda: metrics.CalibrationError(task="binary"), binary),
    "hinge": (lambda: metrics.HingeLoss(**MULTI), scores),
    "mse": (metrics.MeanSquaredError, numbers),
    "mae": (metrics.MeanAbsoluteError, numbers),
    "r2": (metrics.R2Score, numbers),
    "explained_variance": (metrics.ExplainedVariance, numbers),
    "pearson": (metrics.PearsonCorrCoef, numbers),
    "spearman": (metrics.SpearmanCorrCoef, numbers),
    "cosine": (lambda: metrics.CosineSimilarity(reduction="mean"), rows),
    "kl": (metrics.KLDivergence, lambda: (scores()[0], scores()[0])),
    "psnr": (lambda: metrics.image.PeakSignalNoiseRatio(data_range=1.0), images),
    "ssim": (lambda: metrics.image.StructuralSimilarityIndexMeasure(data_range=1.0), images),
    "perplexity": (metrics.text.Perplexity, lambda: (torch.randn(2, 6, CLASSES), torch.randint(CLASSES, (2, 6)))),
    "mean": (metrics.MeanMetric, lambda: (torch.randn(N),)),
}


@pytest.mark.parametrize("name", METRICS)
def test_metric(name, device, native):
    make, batch = METRICS[name]
    torch.manual_seed(0)
    host, batches = make(), [batch(), batch()]
    metric = copy.deepcopy(host).to(device)
    for one in batches:
        host.update(*one)
    with native():
        for one in batches:
            metric.update(*(x.to(device) for x in one))
        value = metric.compute()
    same(value, host.compute(), device)


def same(actual, expected, device):
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected):
            same(a, e, device)
        return
    assert actual.device.type == device.type
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-6)


def test_collection_over_a_loop(device, native):
    torch.manual_seed(0)
    host = metrics.MetricCollection([metrics.Accuracy(**MULTI), metrics.F1Score(**MULTI), metrics.AUROC(**MULTI)])
    device_metrics = copy.deepcopy(host).to(device)
    for _ in range(3):
        batch = scores()
        expected = host(*batch)
        with native():
            actual = device_metrics(*(x.to(device) for x in batch))
        for key in expected:
            same(actual[key], expected[key], device)
    for key, value in host.compute().items():
        same(device_metrics.compute()[key], value, device)
    host.reset(), device_metrics.reset()
    assert all(m._update_count == 0 for m in device_metrics.values())
