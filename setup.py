"""Install with pip into an environment that is a ROS 2 prefix; colcon does not read this file.

pip install --no-build-isolation --no-deps .
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / 'tools'))

import setup_env  # noqa: E402 (lies in tools)


class CMakeBuild(build):
    """Build and stage what CMake installs, and list it as data files, so that pip removes it."""

    def run(self):
        """Run CMake with this environment as prefix, into a staging folder."""
        prefix = Path(sys.prefix)
        if (setup_env.site_packages(prefix) / 'oxygen_ros.pth').exists():
            sys.exit(f'{prefix} uses the source tree in place (make setup): take another one')
        setup_env.mend_exports(prefix)
        stage = ROOT / 'build' / 'stage'
        shutil.rmtree(stage, ignore_errors=True)
        environment = {'AMENT_PREFIX_PATH': str(prefix), **os.environ, 'DESTDIR': str(stage)}
        setup_env.cmake_install(prefix, ROOT / 'build' / 'cmake', environment, [])
        installed = stage / prefix.relative_to('/')
        self.distribution.data_files = [
            (os.path.relpath(folder, installed), [os.path.join(folder, name) for name in names])
            for folder, _, names in os.walk(installed)
            if names
        ]


class PlatformDistribution(Distribution):
    """Says that the wheel holds compiled code."""

    def has_ext_modules(self):
        """Return True: the messages are compiled."""
        return True


def ray_requirements():
    """Return the optional extra of oxygen_replay --ray."""
    lines = (ROOT / 'requirements' / 'ray.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


setup(
    name='oxygen_ros',
    version='0.1.0',
    description='Inference node for vision-language-action models on ROS 2',
    license='Apache-2.0',
    python_requires='>=3.10,<3.14',
    packages=[],
    py_modules=[],
    cmdclass={'build': CMakeBuild},
    distclass=PlatformDistribution,
    extras_require={'ray': ray_requirements()},
    entry_points={
        'console_scripts': [
            'oxygen_check = oxygen_ros.check.cli:main',
            'oxygen_node = oxygen_ros.ros.early:main',
            'oxygen_replay = oxygen_ros.replay.cli:main',
        ],
    },
)
