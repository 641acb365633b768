"""The training loops of accelerate, Lightning and transformers drive the device; what they train is what the CPU gets."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))


def data():
    torch.manual_seed(1)
    return TensorDataset(torch.randn(32, 8), torch.randint(3, (32,)))


def same_state(actual, expected, device):
    for name, value in expected.items():
        assert actual[name].device.type == device.type, name
        torch.testing.assert_close(actual[name].cpu(), value, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")


# ---------------------------------------------------------------------------------------------------------- accelerate


@pytest.fixture
def accelerate_on(monkeypatch):
    """accelerate's own variable names the device; its state is one per process."""
    state = pytest.importorskip("accelerate", exc_type=ImportError).state

    def choose(device):
        state.AcceleratorState._reset_state(True)
        state.GradientState._reset_state()
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", str(device))

    yield choose
    state.AcceleratorState._reset_state(True)
    state.GradientState._reset_state()


def accelerated(folder):
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    module, optimizer, loader, schedule = accelerator.prepare(module, optimizer, loader, schedule)
    torch.manual_seed(2)
    losses = []
    for _ in range(2):
        for x, y in loader:
            assert x.device.type == accelerator.device.type
            with accelerator.accumulate(module):
                loss = F.cross_entropy(module(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(module.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()[None]).item())
    trained = {name: value.clone() for name, value in accelerator.unwrap_model(module).state_dict().items()}
    accelerator.save_state(folder)
    with torch.no_grad():
        module[0].weight.zero_()
    accelerator.load_state(folder)
    assert torch.equal(module[0].weight, trained["0.weight"])
    return losses, trained


def test_accelerate(accelerate_on, device, native, tmp_path):
    accelerate_on("cpu")
    expected_losses, expected = accelerated(tmp_path / "cpu")
    accelerate_on(device)
    with native():
        losses, trained = accelerated(tmp_path / "device")
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-6)
    same_state(trained, expected, device)


def test_transformers_trainer(accelerate_on, device, native, tmp_path):
    tf = pytest.importorskip("transformers", exc_type=ImportError)
    torch.manual_seed(1)
    tokens = torch.randint(3, 99, (16, 8))
    rows = [dict(input_ids=row, labels=row) for row in tokens]
    sizes = dict(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)

    def train(folder):
        torch.manual_seed(0)
        module = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes))
        options = tf.TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=4, learning_rate=1e-3, report_to=[], disable_tqdm=True,
            logging_steps=1, save_strategy="steps", save_steps=2, dataloader_pin_memory=False, eval_strategy="epoch",
        )  # fmt: skip
        trainer = tf.Trainer(module, options, train_dataset=rows, eval_dataset=rows[:4])
        result = trainer.train()
        return options.device, result.training_loss, trainer.evaluate()["eval_loss"], module.state_dict()

    accelerate_on("cpu")
    _, *expected_losses, expected = train(tmp_path / "cpu")
    accelerate_on(device)
    with native():
        where, *losses, trained = train(tmp_path / "device")
    assert where.type == device.type
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-6)
    same_state(trained, expected, device)


# ----------------------------------------------------------------------------------------------------------- Lightning


def lightning_trainer(device):
    """Lightning takes a device that it does not know from a strategy, with an accelerator that says what it is."""
    lightning = pytest.importorskip("lightning", exc_type=ImportError)
    from lightning.pytorch.accelerators import Accelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class AnyDevice(Accelerator):
        setup_device = teardown = get_device_stats = lambda *_: None
        parse_devices = get_parallel_devices = name = staticmethod(lambda *_: device.type)
        auto_device_count = staticmethod(lambda: 1)
        is_available = staticmethod(lambda: True)

    strategy = SingleDeviceStrategy(device=device, accelerator=AnyDevice())
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    return lightning.Trainer(max_epochs=2, strategy=strategy, gradient_clip_val=1.0, **quiet)


def lightning_module():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.seen, self.losses = network(), set(), []

        def step(self, batch):
            x, y = batch
            self.seen.add(x.device.type)
            return F.cross_entropy(self.network(x), y)

        def training_step(self, batch, _):
            loss = self.step(batch)
            self.losses.append(loss.item())
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _):
            self.log("validation_loss", self.step(batch))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        def on_train_end(self):
            self.trained = {name: value.clone() for name, value in self.state_dict().items()}

    return Module()


@pytest.mark.filterwarnings("ignore")
def test_lightning(device, native):
    def train(where):
        trainer, module = lightning_trainer(where), lightning_module()
        torch.manual_seed(2)
        trainer.fit(module, DataLoader(data(), batch_size=8, shuffle=True), DataLoader(data(), batch_size=16))
        assert module.seen == {where.type}
        return module.losses, float(trainer.callback_metrics["validation_loss"]), module.trained

    *expected_losses, expected = train(torch.device("cpu"))
    with native():
        *losses, trained = train(device)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-6)
    same_state(trained, expected, device)
