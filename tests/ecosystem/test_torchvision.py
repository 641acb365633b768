"""torchvision's segmentation and detection models, small, train on the device as on the CPU.

Of torchvision's own operators, nms and roi_align are native; the host computes the others, counted like every fallback.
"""

import pytest
import torch
import torch.nn.functional as F

torchvision = pytest.importorskip("torchvision", exc_type=ImportError)

from torchvision.models import detection, mobilenet_v3_small, segmentation  # noqa: E402
from torchvision.models._utils import IntermediateLayerGetter  # noqa: E402
from torchvision.models.detection import anchor_utils, backbone_utils, faster_rcnn, mask_rcnn, ssd, ssdlite  # noqa: E402
from torchvision.ops import MultiScaleRoIAlign  # noqa: E402

import msadapter  # noqa: E402
from msadapter.config import set_config  # noqa: E402
from tests.backend.kernels.util import check as check_call  # noqa: E402

from .step import Case, check  # noqa: E402

CLASSES, WIDTH = 4, 16
LAYERS = {"1": "low", "4": "out"}  # of MobileNet's features: 1/4 and 1/16 of the image
SIZE = dict(min_size=64, max_size=96)


def features():
    return mobilenet_v3_small(width_mult=0.5).features[:5]


def channels():
    images, found = torch.zeros(1, 3, 32, 32), {}
    layers = features().eval()
    for name, layer in layers.named_children():
        images = layer(images)
        found[name] = images.shape[1]
    return [found[name] for name in LAYERS]


def pyramid():
    """Three maps of WIDTH channels: two from the backbone, and one pooled."""
    return backbone_utils.BackboneWithFPN(features(), LAYERS, channels(), WIDTH)


def anchors():
    return anchor_utils.AnchorGenerator(((16,), (32,), (64,)), ((0.5, 1.0),) * 3)


def lraspp():
    return segmentation.LRASPP(backbone("high"), *channels(), CLASSES, inter_channels=WIDTH)


def deeplabv3():
    return segmentation.DeepLabV3(backbone("out"), segmentation.deeplabv3.DeepLabHead(channels()[1], CLASSES))


def fcn():
    return segmentation.FCN(backbone("out"), segmentation.fcn.FCNHead(channels()[1], CLASSES))


def backbone(last):
    return IntermediateLayerGetter(features(), dict(zip(LAYERS, ("low", last))))


def ssdlite_small():
    boxes = anchor_utils.DefaultBoxGenerator([[2], [2], [2]])
    counts = boxes.num_anchors_per_location()
    head = ssdlite.SSDLiteHead([WIDTH] * 3, counts, CLASSES, norm_layer=torch.nn.BatchNorm2d)
    return ssd.SSD(pyramid(), boxes, (64, 64), CLASSES, head=head)


def retinanet():
    return detection.RetinaNet(pyramid(), CLASSES, anchor_generator=anchors(), **SIZE)


def rcnn(make, **more):
    return make(
        pyramid(),
        rpn_anchor_generator=anchors(),
        box_roi_pool=MultiScaleRoIAlign(list(LAYERS.values()), 3, 2),
        box_head=faster_rcnn.TwoMLPHead(WIDTH * 9, 32),
        box_predictor=faster_rcnn.FastRCNNPredictor(32, CLASSES),
        rpn_pre_nms_top_n_train=100,
        rpn_post_nms_top_n_train=50,
        box_batch_size_per_image=32,
        **SIZE,
        **more,
    )


def masks():
    return dict(
        mask_roi_pool=MultiScaleRoIAlign(list(LAYERS.values()), 6, 2),
        mask_head=mask_rcnn.MaskRCNNHeads(WIDTH, (WIDTH,), 1),
        mask_predictor=mask_rcnn.MaskRCNNPredictor(WIDTH, WIDTH, CLASSES),
    )


def labelled_pixels():
    return torch.randn(4, 3, 64, 64), torch.randint(CLASSES, (4, 64, 64))


def pixel_loss(module, batch):
    images, labels = batch
    return sum(F.cross_entropy(scores, labels) for scores in module(images).values())


def labelled_boxes():
    boxes = torch.tensor([[4.0, 6, 30, 40], [20, 10, 50, 60]])
    images = [torch.rand(3, 64, 64), torch.rand(3, 64, 72)]
    return images, [
        dict(boxes=boxes, labels=torch.tensor([1, 2]), masks=torch.ones(2, 64, 64, dtype=torch.uint8)),
        dict(boxes=boxes[:1], labels=torch.tensor([3]), masks=torch.ones(1, 64, 72, dtype=torch.uint8)),
    ]


def box_loss(module, batch):
    return sum(module(*batch).values())


MODELS = {
    "lraspp": Case(lraspp, labelled_pixels, pixel_loss),
    "deeplabv3": Case(deeplabv3, labelled_pixels, pixel_loss),
    "fcn": Case(fcn, labelled_pixels, pixel_loss),
    "ssdlite": Case(ssdlite_small, labelled_boxes, box_loss),
    "retinanet": Case(retinanet, labelled_boxes, box_loss),
    "faster_rcnn": Case(lambda: rcnn(detection.FasterRCNN), labelled_boxes, box_loss),
    "mask_rcnn": Case(lambda: rcnn(detection.MaskRCNN, **masks()), labelled_boxes, box_loss),
}


def case(name):
    return MODELS[name]


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name, device):
    check(MODELS[name], device)


def test_detection(device, native):
    torch.manual_seed(0)
    module, (images, _) = rcnn(detection.MaskRCNN, **masks()).eval(), labelled_boxes()
    with torch.no_grad():
        expected = module(images)
        module.to(device)
        with native():
            actual = module([image.to(device) for image in images])
    assert any(len(found["boxes"]) for found in expected)
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a["labels"].cpu(), e["labels"])
        for key in ("boxes", "scores", "masks"):
            torch.testing.assert_close(a[key].cpu(), e[key], rtol=1e-4, atol=1e-4)


def boxes_and_scores(n, dtype, levels=None):
    """`levels`: whole coordinates and only so many scores, so that there are ties."""
    corners = torch.rand(n, 2) * 10
    boxes, scores = torch.cat([corners, corners + torch.rand(n, 2) * 10], 1), torch.rand(n)
    if levels:
        boxes, scores = boxes.round(), (scores * levels).round()
    return boxes.to(dtype), scores.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 50])
def test_nms(n, dtype, device, native):
    torch.manual_seed(n)
    for levels in (None, 4):
        boxes, scores = boxes_and_scores(n, dtype, levels)
        for threshold in (0.0, 0.25, 0.3, 0.5, 0.7, 1.0):
            with native():
                kept = torchvision.ops.nms(boxes.to(device), scores.to(device), threshold)
            assert kept.device.type == device.type
            assert kept.tolist() == torchvision.ops.nms(boxes, scores, threshold).tolist()


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [-1, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_roi_align(dtype, samples, aligned):
    """Regions in part or wholly outside, turned inside out, and an image (the third) without any."""
    torch.manual_seed(0)
    images = torch.randn(3, 2, 12, 16, dtype=dtype)
    corners = torch.rand(15, 2) * 16 - 2
    rois = torch.cat([torch.randint(2, (15, 1)).float(), corners, corners + torch.rand(15, 2) * 24 - 1], 1).to(dtype)
    for scale in (1.0, 0.25):
        fn = lambda x: torchvision.ops.roi_align(x, rois.to(x.device), (4, 3), scale, samples, aligned)
        check_call(fn, images, rtol=1e-5, atol=1e-5)
    check_call(lambda x: torchvision.ops.roi_align(x, rois[:0].to(x.device), (4, 3), 1.0, samples, aligned), images)


def test_operators_without_kernels_run_on_the_host_and_are_counted(device):
    torch.manual_seed(0)
    images, rois = torch.randn(1, 4, 16, 16), torch.tensor([[0.0, 1, 2, 9, 11], [0, 0, 0, 15, 15]])
    old = set_config(fallback="silent").fallback
    msadapter.reset_fallbacks()
    try:
        for fn, size in ((torchvision.ops.roi_pool, 4), (torchvision.ops.ps_roi_align, 2)):
            torch.testing.assert_close(fn(images.to(device), rois.to(device), size).cpu(), fn(images, rois, size))
        assert msadapter.fallbacks() == {"torchvision::roi_pool": 1, "torchvision::ps_roi_align": 1}
    finally:
        set_config(fallback=old)


@pytest.mark.parametrize("shapes", [((3, 5), (3,)), ((3, 4), (2,)), ((3,), (3,))])
def test_errors_are_torchvisions(shapes, device):
    words = []
    for place in ("cpu", device):
        with pytest.raises(RuntimeError) as error:
            torchvision.ops.nms(*(torch.ones(s, device=place) for s in shapes), 0.5)
        words.append(str(error.value).splitlines()[0])
    assert words[0] == words[1]


def test_box_arithmetic_is_native(device, native):
    torch.manual_seed(0)
    boxes, _ = boxes_and_scores(20, torch.float32)
    ops = torchvision.ops
    with native():
        for fn in (ops.box_iou, ops.generalized_box_iou, ops.distance_box_iou, ops.complete_box_iou):
            torch.testing.assert_close(fn(boxes.to(device), boxes.to(device)).cpu(), fn(boxes, boxes))
        for fn in (lambda b: ops.clip_boxes_to_image(b, (8, 8)), lambda b: ops.remove_small_boxes(b, 2.0), ops.box_area):
            torch.testing.assert_close(fn(boxes.to(device)).cpu(), fn(boxes))
        for fn in (ops.sigmoid_focal_loss, lambda x, y: ops.generalized_box_iou_loss(boxes.to(x.device), boxes.to(x.device))):
            x, y = torch.randn(4, 3), torch.randint(2, (4, 3)).float()
            torch.testing.assert_close(fn(x.to(device), y.to(device)).cpu(), fn(x, y))
