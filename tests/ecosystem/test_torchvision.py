"""torchvision's segmentation and detection models, small, train on the device as on the CPU.

torchvision's own operators (nms, roi_align) have no kernel here: the host computes them, counted like every fallback.
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

from .step import Case, check  # noqa: E402

CLASSES, WIDTH = 4, 16
LAYERS = {"1": "low", "4": "out"}  # of MobileNet's features: 1/4 and 1/16 of the image
SIZE = dict(min_size=64, max_size=96)
NMS, ROI_ALIGN = ("torchvision::nms",), ("torchvision::roi_align", "torchvision::_roi_align_backward")


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
    "faster_rcnn": Case(lambda: rcnn(detection.FasterRCNN), labelled_boxes, box_loss, fallback=NMS + ROI_ALIGN),
    "mask_rcnn": Case(lambda: rcnn(detection.MaskRCNN, **masks()), labelled_boxes, box_loss, fallback=NMS + ROI_ALIGN),
}


def case(name):
    return MODELS[name]


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name, device):
    check(MODELS[name], device)


def test_detection(device):
    torch.manual_seed(0)
    module, (images, _) = rcnn(detection.MaskRCNN, **masks()).eval(), labelled_boxes()
    with torch.no_grad():
        expected = module(images)
        actual = module.to(device)([image.to(device) for image in images])
    assert any(len(found["boxes"]) for found in expected)
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a["labels"].cpu(), e["labels"])
        for key in ("boxes", "scores", "masks"):
            torch.testing.assert_close(a[key].cpu(), e[key], rtol=1e-4, atol=1e-4)


def test_operators_run_on_the_host_and_are_counted(device):
    torch.manual_seed(0)
    corners = torch.rand(20, 2) * 10
    boxes, scores = torch.cat([corners, corners + torch.rand(20, 2) * 10], 1), torch.rand(20)
    groups, images = torch.arange(20) % 3, torch.randn(1, 4, 16, 16)
    rois = [torch.tensor([[1.0, 2, 9, 11], [0, 0, 15, 15]])]
    here = [rois[0].to(device)]
    old = set_config(fallback="silent").fallback
    msadapter.reset_fallbacks()
    try:
        for name, calls in {
            "nms": [(torchvision.ops.nms, (boxes, scores, 0.3)), (torchvision.ops.batched_nms, (boxes, scores, groups, 0.3))],
            "roi_align": [(torchvision.ops.roi_align, (images, rois, 4, 1.0, 2))],
            "roi_pool": [(torchvision.ops.roi_pool, (images, rois, 4))],
            "ps_roi_align": [(torchvision.ops.ps_roi_align, (images, rois, 2))],
        }.items():
            for fn, args in calls:
                moved = [here if a is rois else a.to(device) if isinstance(a, torch.Tensor) else a for a in args]
                torch.testing.assert_close(fn(*moved).cpu(), fn(*args))
            assert msadapter.fallbacks()[f"torchvision::{name}"] == len(calls)
    finally:
        set_config(fallback=old)


def test_box_arithmetic_is_native(device, native):
    torch.manual_seed(0)
    corners = torch.rand(20, 2) * 10
    boxes = torch.cat([corners, corners + torch.rand(20, 2) * 10], 1)
    ops = torchvision.ops
    with native():
        for fn in (ops.box_iou, ops.generalized_box_iou, ops.distance_box_iou, ops.complete_box_iou):
            torch.testing.assert_close(fn(boxes.to(device), boxes.to(device)).cpu(), fn(boxes, boxes))
        for fn in (lambda b: ops.clip_boxes_to_image(b, (8, 8)), lambda b: ops.remove_small_boxes(b, 2.0), ops.box_area):
            torch.testing.assert_close(fn(boxes.to(device)).cpu(), fn(boxes))
        for fn in (ops.sigmoid_focal_loss, lambda x, y: ops.generalized_box_iou_loss(boxes.to(x.device), boxes.to(x.device))):
            x, y = torch.randn(4, 3), torch.randint(2, (4, 3)).float()
            torch.testing.assert_close(fn(x.to(device), y.to(device)).cpu(), fn(x, y))
