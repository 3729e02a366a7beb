"""Random kernels with barriers, and whether they do the same as loops and as threads at once."""

import random

import numpy as np

from hal_cpu import _compile


class Kernels:
    """Random kernels of structured statements, whose threads write to their own elements."""

    def __init__(self, seed):
        self.meet = True
        self.random = random.Random(seed)
        self.count = 0

    def kernel(self, name):
        self.variables = ["v0", "v1"]
        returns = self.random.choice(["", "if (t >= n) return;", "if (v1 == 3) { v0++; return; }"])
        return f"""
__global__ void {name}(int *p, int n) {{
  __shared__ int s[256];
  const int t = threadIdx.x + blockDim.x * threadIdx.y, size = blockDim.x * blockDim.y;
  const {self.random.choice(["int", "unsigned", "size_t"])} x = threadIdx.x;
  int i = blockIdx.x * size + t, own[3] = {{t, 2, n}};
  int v0 = p[i], v1 = v0 % 7;
  s[t] = v0;
  __syncthreads();
  {returns}
  {self.block(2)}
  own[1] += s[(t + 1) % size] * 0 + v1;
  p[i] = v0 + 3 * v1 + 5 * own[0] + 7 * own[1] + own[2];
}}
"""

    def block(self, depth):
        return "\n".join(self.statement(depth) for _ in range(self.random.randint(2, 4)))

    def statement(self, depth):
        pick = self.random.choice
        kinds = ["step", "share", "new", "own", "inner", "even", "odd", "few", "switch"]
        kinds += ["lanes", "vote", "some"]
        kinds += ["refer"] + ["loop", "if", "while", "do"] * (depth > 0)
        kinds += ["leave", "halve"] * (depth > 0 and self.meet)
        return self.of_kind(pick(kinds), depth)

    def of_kind(self, kind, depth=0):
        pick = self.random.choice
        a, b = pick(self.variables), pick(self.variables)
        self.count += 1
        name = f"w{self.count}"
        if kind == "step":
            return f"{a} = ({a} * 5 + {b} % 11 - t) % 1000;"
        if kind == "lanes":
            by, width = pick(["1", "n", "t", "v1", "x", f"{a} & 15"]), pick(["", "", ", 8"])
            call = pick(["shfl", "shfl_up", "shfl_down", "shfl_xor"])
            return f"{b} = ({b} + __{call}_sync(~0u, {a}, {by}{width}) * 3) % 1000;"
        if kind == "vote":
            call = pick(["ballot", "any", "all", "match_any", "reduce_add", "reduce_max"])
            more = pick(["", "__syncwarp();"])
            return f"{more} {b} += __{call}_sync(0xffffffff, {a} % 3) % 99;"
        if kind == "some":  # of whole warps
            which = pick(
                ["t / 32 == 0", "t / 32 != n % 3", f"t >= 32 && n > {pick('29')}", "t < 32"]
            )
            kept = list(self.variables)
            body = "".join(self.of_kind(pick(["lanes", "vote", "step", "own"])) for _ in range(3))
            inner = f"for (int k{name} = 0; k{name} < n % 3; k{name}++) {{ {body} }}"
            body = pick([body, inner, f"{body} if (n % 2) {{ {self.of_kind('lanes')} }}"])
            self.variables = kept
            # Behind a barrier the others meet nobody who is in there still.
            return f"if ({which}) {{ {body} }} {pick(['', f'else {a} ^= t;'])} __syncthreads();"
        if kind == "share":
            return f"__syncthreads(); s[t] = {a}; __syncthreads(); {b} += s[t] + t % 3;"
        if kind == "new":
            kind = pick(["int", "auto", "const auto"])
            self.variables += [] if "const" in kind else [name]
            return f"{kind} {name} = {a} + {b}; {a} += {name} % 3;"
        if kind == "own":
            return f"own[{a} & 1] += {b};"
        if kind == "inner":
            body = f"{{ if ({a} > 99) break; {b}++; }}"
            return f"for (int k{name} = 0; k{name} < t % 4; k{name}++) {body}"
        if kind == "switch":
            of, more = pick(["n", f"{a} + t", "x"]), pick(["", "break;", "if (t > 5) break;"])
            loop = f"while ({b} > 9) {{ {b} /= 2; if ({b} == 11) break; }}"
            return (
                f"switch (({of}) % 4) {{ case 0: {a}++; break; case 1: {{ int {name} = {a};"
                f" {b} ^= {name} % 99; {more} }} default: {a} -= 2; case 3: {loop} {more} }}"
            )
        if kind == "even":  # all threads run it in step
            step = pick(
                [f"{a} = ({a} + s[t] * k) % 999;", f"int {name} = s[t]; {b} += {name} % 7;"]
            )
            return (
                f"for (int k = {pick('02')}; k < n; k++) {pick([f'{{ {step} }}', f'{a} ^= s[t];'])}"
            )
        if kind == "odd":
            init = pick(["t", "threadIdx.x", "x", "x", "n - 1 + t", "t - 3"])
            call = f"const float f{name} = expf(k % 9 * 0.25f);"
            more = pick(["", f"{call} {b} ^= k; s[t] += (int)(8 * f{name});"])
            return (
                f"for (int k = {init}; k < n * {pick('29')}; k += size)"
                f" {{ {more} {a} += k + s[(k + n) % 1 + t]; }}"
            )
        if kind == "few":
            bound = pick(["n", "n / 2u", "n - 9", "blockDim.x / 2", "2.5f", "(n > 5)"])
            more = pick(["", "", " && n > 4", f" && {a} > 5"])
            condition = f"{pick(['x', 'threadIdx.x'])} {pick(['<', '=='])} {bound}{more}"
            return f"__syncthreads(); if ({condition}) {b} += 7;"
        if kind == "halve":
            head, step = f"int {name} = blockDim.x / 2", pick([f"{name} /= 2", f"{name} >>= 1"])
            body = f"if (x < {name}) s[t] += s[t + {name}] % 99; __syncthreads();"
            start = f"s[t] = {a}; __syncthreads();"
            loop = f"for ({head}; {name} > 0; {step}) {{ {body} }}"
            if pick([True, False]):
                loop = f"{head}; while ({name}) {{ {body} {step}; }}"
            return f"__syncthreads(); {start} {loop} {b} += s[t] % 99;"
        if kind == "refer":
            use = f"__syncthreads(); {b} += {name} % 7;"
            return f"__syncthreads(); int &{name} = s[t]; {name} += {a}; {use}"
        kept = list(self.variables)
        body = self.block(depth - 1)
        self.variables = kept
        if kind == "do":
            step = f"__syncthreads(); {name}--; {pick(['', f'if ({name} == 1) break;'])}"
            return f"int {name} = n % 4; do {{ {body} {step} {a} += {name}; }} while ({name} > 0);"
        if kind == "leave":
            # Of what all threads read from shared memory.
            head = f"__syncthreads(); if (t == 0) s[0] = {a}; __syncthreads();"
            way = f"{pick('<>')} 50) {pick(['break', 'continue'])}"
            leave = f"const int m{name} = s[0]; if (s[0] {way}; __syncthreads();"
            return (
                f"for (int {name} = 0; {name} < 3; {name}++) {{ {head} {leave} {body}"
                f" __syncthreads(); {b} += m{name}; }} __syncthreads();"
            )
        if kind == "while":
            # What follows from the thread's index and from what changes is not computed again.
            use = f"{pick(['int', 'auto'])} u{name} = n % 5; {a} += t * {name};"
            step = pick([f"{name} /= 2;", f"{name}--;", f"{name} = {name} - 1 - n % 2;"])
            more = f"int o{name} = t + {name}; {step} __syncthreads(); {b} += o{name} - u{name};"
            if pick([True, False]):
                return f"int {name} = n % 4; while ({name} > 0) {{ {body} {use} {more} }}"
            return f"int {name} = 0; for ({name} = n % 3; {name} > 0;) {{ {body} {use} {more} }}"
        if kind == "loop":
            name = f"k{depth}"  # many loops count with one name
            return f"for (int {name} = 0; {name} < n % 4; {name}++) {{ {body} __syncthreads(); }}"
        return f"if (n % 3 == {pick([0, 1, 2])}) {{ {body} __syncthreads(); }} else {{ {a} -= 2; }}"


def check_both_ways(lab, monkeypatch, source, seed, count, **request):
    """Launch the kernels `kernel0` and so on of a source, `count` of them, made in both ways."""
    modules = []
    for loops in (True, False):
        monkeypatch.setattr(_compile, "LOOPS", loops)
        modules.append(lab.load(lab.image(source, **request)))
    rng = np.random.default_rng(seed)
    for number in range(count):
        for block, n in (((64, 1), 64), ((16, 4), 17), ((7, 3), 5), ((1, 1), 2), ((256, 1), 255)):
            start = rng.integers(0, 100, 3 * block[0] * block[1])
            results = []
            for module in modules:
                p = lab.array(start, "i4")
                function = lab.device.get_function(module, f"kernel{number}")
                lab.run(function, 3, block, p, np.int32(n))
                results.append(p.tolist())
            assert results[0] == results[1], source
