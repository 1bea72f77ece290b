"""Networks of one's own that the suite doesn't know, and a small LLaMA."""

import tiny
import torch
import torch.nn.functional as F
from torch import nn

FEW = {"iters": 4, "a_iters": 2, "progress": False}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(out + x, inplace=True)


class Pictures(nn.Module):
    """Functional glue between its parts, in place too."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.stage = nn.Sequential(Residual(8), Residual(8))
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), Residual(16))
        self.head = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, x):
        x = F.max_pool2d(self.stage(F.relu(self.bn(self.stem(x)), inplace=True)), 2)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.down(x), 1), 1))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.up, self.down = (nn.Linear(*s) for s in ((width, width), (width, 32), (32, width)))

    def forward(self, x, mask):
        x = x + torch.softmax(self.query(x) @ x.transpose(1, 2) + mask, -1) @ x
        return x + self.down(F.gelu(self.up(x))), None


class Words(nn.Module):
    """Layers in a list in a dictionary, which return tuples and take a mask by name."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 50)
        self.core = nn.ModuleDict({"layers": nn.ModuleList(Layer(16) for _ in range(3))})

    def forward(self, ids):
        x = self.embedding(ids)
        mask = x.new_full((ids.shape[1],) * 2, -1e4).triu(1)
        for layer in self.core["layers"]:
            x, _ = layer(x, mask=mask)
        return self.head(self.norm(x))


class Across(nn.Module):
    """Its last part reads what two parts gave."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        y = self.a(x)
        return self.c(self.b(y) + y)


class Twice(Across):
    """Calls a layer twice, and another one never."""

    def forward(self, x):
        return self.a(torch.relu(self.a(self.b(x))))


class Attends(nn.Module):
    """PyTorch's attention around other parts."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.first(x)
        return self.last(x + self.attention(x, x, x)[0])


def made(kind):
    torch.manual_seed(0)
    model = kind()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2)
    return model.eval()


def pictures(count=16):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def words(count=16):
    return torch.randint(0, 50, (count, 12), generator=torch.Generator().manual_seed(1))


def llama(**config):
    return tiny.make("llama", seed=0, intermediate_size=32, **config)
