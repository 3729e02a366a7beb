"""AMD's own runtime library and compiler, on a machine without their devices."""

import json
import os
from pathlib import Path

import pytest
import shipped_kernels
from child_processes import run_alone

FOLDER = os.environ.get("HAL_AMD_LIBRARY", "")
TARGET = "gfx90a"
"""Which every version knows: the compiler ends its process for a target that it does not know."""
DEVICES = Path("/dev/kfd")

pytestmark = pytest.mark.skipif(
    not FOLDER,
    reason="HAL_AMD_LIBRARY names no folder: make one with tests/hip/fetch_amd_library.sh FOLDER",
)


@pytest.fixture
def run(tmp_path):
    """Run a program on AMD's libraries, in a child; return what it printed, read as JSON."""
    folder = Path(FOLDER).resolve()

    def function(source):
        done = run_alone(
            tmp_path,
            source,
            ROCM_PATH=str(folder),
            LD_LIBRARY_PATH=str(folder / "lib"),
            HAL_CACHE_DIR=str(tmp_path / "cache"),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return function


@pytest.mark.skipif(DEVICES.exists(), reason="an AMD GPU is here, or its driver")
def test_it_says_that_there_is_no_device(run):
    said = run("""
    import json
    import hal
    try:
        hal.create_device("hip")
    except hal.errors.BackendUnavailableError as error:
        print(json.dumps([error.native_name, error.native_code, str(error)]))
    """)
    assert said[:2] == ["hipErrorNoDevice", 100]
    assert "hipErrorNoDevice" in said[2]
    assert "runtime 5." in said[2]


@pytest.mark.parametrize("name", shipped_kernels.PROGRAMS)
def test_its_compiler_takes_our_kernels_c5(run, tmp_path, name):
    source, defines = shipped_kernels.PROGRAMS[name]
    asked = {"source": source, "filename": name, "defines": defines, "target": f"hip:{TARGET}"}
    compiled = run(f"""
    import json
    import hal
    program = hal.compile(**{asked!r})
    print(json.dumps([program.images[0].image.hex(), program.images[0].properties["compiler"]]))
    """)
    assert compiled[1].startswith("hiprtc ")
    shipped_kernels.check(name, bytes.fromhex(compiled[0]), TARGET)


REFUSED = """__global__ void f(int *p) {
  *p = nothing;
}
"""


def test_its_compiler_refuses_with_the_users_lines_c5(run):
    said = run(f"""
    import json
    import hal
    try:
        hal.compile({REFUSED!r}, filename="mine.cpp", target="hip:{TARGET}")
    except hal.errors.CompilationError as error:
        print(json.dumps([str(error), error.log]))
    """)
    assert "mine.cpp:2:" in said[0]
    assert "nothing" in said[1]


def test_a_function_that_it_lacks_is_named_with_its_version(run):
    said = run("""
    import json
    import hal
    from hal_hip import _driver
    name = "hipGetDevicePropertiesR0600"  # what the bindings call for the function below
    try:
        _driver.call(_driver.hip.hipGetDeviceProperties, 0)
    except hal.errors.UnimplementedError as error:
        print(json.dumps([_driver.has(name), str(error)]))
    """)
    assert said[0] is False
    assert "5." in said[1]
    assert "too old" in said[1]


def test_what_an_image_says_of_its_kernels_c5(run):
    """The compiler's own code objects, read as images of another compiler."""
    said = run(f"""
    import json
    import hal
    source = "__global__ void f(float a, const int *__restrict__ x, int *y) {{ *y = *x; }}"
    (image,) = hal.compile(source, target="hip:{TARGET}").images
    image = image.image.replace(b"hal_kernels", b"HAL_kernels")  # hal's own table says more
    (found,) = hal.Program.from_images(image).images
    print(json.dumps([found.name, str(found.kernels["f"].signature)]))
    """)
    assert said[0] == f"hip:{TARGET}"
    assert said[1] == "(any[4] arg0, const ptr arg1, ptr arg2)"
