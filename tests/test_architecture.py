"""The rules of the house that a linter of single files cannot see."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("agents", "teacher", "human_feedback_site")
PICKLING = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def test_the_trainer_starts_without_django() -> None:
    program = "import sys, agents.ppo, teacher.cli.train; sys.exit('django' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_site_starts_without_torch_and_gymnasium(tmp_path: Path) -> None:
    program = (
        "import sys, os; os.environ['DJANGO_SETTINGS_MODULE'] = 'human_feedback_site.settings'\n"
        f"os.environ['TEACHER_STATE_DIR'] = {str(tmp_path)!r}\n"
        "import human_feedback_site.wsgi, human_feedback_site.urls\n"
        "sys.exit(bool({'torch', 'gymnasium', 'numpy', 'teacher', 'agents'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_nothing_is_pickled() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not PICKLING & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert ast.unparse(node.func) != "torch.save", path
                if ast.unparse(node.func) == "torch.load":  # then it unpickles no objects other than tensors
                    assert "weights_only=True" in map(ast.unparse, node.keywords), path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
