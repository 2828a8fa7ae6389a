"""MuJoCo renderer that is fast on a CPU and makes behavior easy to judge.

Gymnasium's viewer spends most of its time on multisampling, shadow maps and reflections. This renderer
restyles a copy of the model: even light, a checkered floor that fades into the background, flat shadows under
the limbs, and a camera that follows the body only horizontally. It never modifies the environment's own
model, so rendering can't change the simulation.
"""

import copy
import importlib
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from teacher.clips.encode import Frame
from teacher.envs.gl import select_gl
from teacher.errors import RenderError, one_line

_SKY = np.array([0.62, 0.76, 0.90])
_HORIZON = np.array([0.93, 0.95, 0.97])
_TILES = ((205, 212, 218), (232, 236, 239))
_BODY = (0.90, 0.45, 0.20, 1.0)
_OTHER_SIDE = (0.20, 0.47, 0.70, 1.0)
_SHADOW_ALPHA = 0.30


@dataclass(frozen=True)
class View:
    """Camera and style for one MuJoCo model.

    Attributes:
        distance: meters from the camera to the point it looks at.
        azimuth: camera azimuth in degrees; 90 looks along +y, so the forward direction +x points right.
        follow: True if the camera moves horizontally with the model's center of mass.
        tile: side length of the floor's squares in meters. Fast models need large squares: if a model crosses
            about one square per frame, it appears to run backward.
        other_side: names of bodies that get a second color, along with all their descendants, to tell left
            legs from right ones.
    """

    distance: float
    height: float
    elevation: float = -12.0
    azimuth: float = 90.0
    follow: bool = True
    tile: float = 0.5
    other_side: tuple[str, ...] = ()


_VIEWS = {
    "hopper": View(3.2, 0.75),
    "walker2d": View(3.4, 0.8, other_side=("thigh_left",)),
    "cheetah": View(3.6, 0.55, tile=1.0, other_side=("fthigh",)),
    "swimmer": View(4.6, 0.0, elevation=-50.0),
    "ant": View(4.2, 0.3, elevation=-25.0, other_side=("front_left_leg", "back_leg")),
    "humanoid": View(4.2, 0.9, azimuth=120.0, other_side=("left_thigh", "left_upper_arm")),
    "reacher": View(0.72, 0.0, elevation=-90.0, follow=False),
    "inverted pendulum": View(2.9, 0.25, elevation=-4.0, follow=False),
    "cartpole": View(4.0, 0.0, elevation=-4.0, follow=False),
}
"""Views, keyed by the model name in the MuJoCo XML file."""


class MujocoScene:
    """Fast renderer of one MuJoCo model.

    Args:
        camera: camera settings to use if the model has no :class:`View`.
    """

    def __init__(self, model: Any, camera: dict[str, Any] | None, size: int) -> None:
        self._view = _VIEWS.get(_model_name(model))
        self._model = _restyled(model, self._view, size)
        self._floor = _floor_height(self._model) if self._view is not None and self._view.follow else None
        backend_name = select_gl()
        try:
            backend = importlib.import_module(f"mujoco.{backend_name}")
            self._gl = backend.GLContext(size, size)
            self._gl.make_current()
            self._context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100)
        # PyOpenGL raises one of the first three if a library is missing.
        except (AttributeError, ImportError, OSError, RuntimeError, mujoco.FatalError) as error:
            raise RenderError(
                f"MuJoCo cannot render with MUJOCO_GL={backend_name}: {one_line(error)}; "
                "leave MUJOCO_GL unset, or install libegl1 and libgl1-mesa-dri, or libosmesa6"
            ) from error
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(self._model, 2000)
        for flag in ("SHADOW", "REFLECTION", "SKYBOX", "HAZE"):
            self._scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{flag}")] = False
        self._scene.flags[mujoco.mjtRndFlag.mjRND_FOG] = True
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._camera = _camera(self._model, self._view, camera)
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.empty((size, size, 3), np.uint8)
        self._depth = np.empty((size, size), np.float32)
        self._backdrop = _gradient(self._camera.elevation, self._model.vis.global_.fovy, size)

    def draw(self, data: Any) -> Frame:
        """Render a simulation state (MuJoCo's ``MjData``) as a frame of shape ``(size, size, 3)``."""
        if self._view is not None and self._view.follow:
            self._camera.lookat[:2] = data.subtree_com[1, :2]
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._option,
            self._perturb,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        if self._view is not None and self._floor is not None:
            _move_floor(self._scene, self._camera.lookat, 2 * self._view.tile)
            _cast_shadows(self._model, data, self._scene, self._floor)
        _light(self._scene)
        self._gl.make_current()
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, self._depth, self._viewport, self._context)
        nothing = self._depth == 1.0
        for channel in range(3):  # masking all channels at once is ten times slower
            np.copyto(self._pixels[..., channel], self._backdrop[..., channel], where=nothing)
        return self._pixels[::-1].copy()

    def close(self) -> None:
        """Free the OpenGL context."""
        self._context.free()
        self._gl.free()


def _model_name(model: Any) -> str:
    return bytes(model.names).split(b"\0", 1)[0].decode(errors="replace")


def _restyled(model: Any, view: View | None, size: int) -> Any:
    """Return a copy of the model with simple lighting, fog and, unless ``view`` is None, new colors."""
    model = copy.copy(model)
    quality = model.vis.quality
    quality.offsamples, quality.numslices, quality.numstacks = 0, 16, 8
    model.vis.global_.offwidth = model.vis.global_.offheight = size
    model.vis.rgba.fog[:] = (*_HORIZON, 1.0)
    model.vis.map.fogstart, model.vis.map.fogend = 7.0 / model.stat.extent, 25.0 / model.stat.extent
    model.mat_reflectance[:] = model.mat_specular[:] = model.mat_shininess[:] = 0.0
    if view is not None:
        _tile_floor(model, view.tile)
        if model.nmat:
            _paint_bodies(model, view)
    return model


def _tile_floor(model: Any, tile: float) -> None:
    """Extend floor planes beyond the fog, and give textured ones a checkerboard of two light tones.

    A plane's third size component is its grid spacing for rendering. A coarse grid suffices, because lighting
    is uniform. With an infinite plane, or with the models' default spacing, drawing the floor would take more
    than half of the rendering time.
    """
    planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    model.geom_size[planes] = (30.0, 30.0, 30.0)
    model.geom_rgba[planes & (model.geom_matid < 0), :3] = 0.85
    for material in {int(index) for index in model.geom_matid[planes] if index >= 0}:
        model.geom_rgba[planes] = model.mat_rgba[material] = 1.0
        model.mat_texuniform[material], model.mat_texrepeat[material] = 1, 0.5 / tile
        for texture in model.mat_texid[material]:
            if texture >= 0 and model.tex_type[texture] == mujoco.mjtTexture.mjTEXTURE_2D:
                _checker(model, int(texture))


def _checker(model: Any, texture: int) -> None:
    height, width, channels = (
        int(size[texture]) for size in (model.tex_height, model.tex_width, model.tex_nchannel)
    )
    rows, columns = np.indices((height, width))
    tones = np.array(_TILES, np.uint8)
    image = np.full((height, width, channels), 255, np.uint8)
    image[..., :3] = tones[(rows * 2 // height + columns * 2 // width) % 2]
    start = int(model.tex_adr[texture])
    model.tex_data[start : start + image.size] = image.ravel()


def _paint_bodies(model: Any, view: View) -> None:
    other_side = np.zeros(model.nbody, bool)
    for body in range(1, model.nbody):  # a body comes after its parent
        name = model.body(body).name
        other_side[body] = name in view.other_side or other_side[model.body_parentid[body]]
    moving = model.geom_bodyid > 0
    model.geom_matid[moving] = -1
    model.geom_rgba[moving] = np.where(
        other_side[model.geom_bodyid[moving]][:, None], np.array(_OTHER_SIDE), np.array(_BODY)
    )


def _camera(model: Any, view: View | None, settings: dict[str, Any] | None) -> Any:
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    if view is not None:
        camera.lookat[:] = (0.0, 0.0, view.height)
        camera.distance, camera.elevation, camera.azimuth = view.distance, view.elevation, view.azimuth
        return camera
    for name, value in (settings or {}).items():
        if name == "lookat":
            camera.lookat[:] = value
        else:
            setattr(camera, name, value)
    return camera


def _light(scene: Any) -> None:
    """Light the scene from above and from the upper left, so that limbs look round and nothing is black."""
    scene.nlight = 2
    for light, (direction, ambient, diffuse) in zip(
        scene.lights,
        (((0.0, 0.0, -1.0), 0.45, 0.35), ((0.4, 0.6, -0.7), 0.0, 0.35)),
        strict=False,
    ):
        light.headlight, light.castshadow = 0, 0
        if hasattr(light, "type"):
            light.type = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
        else:  # MuJoCo 3.3.0, which Meta-World requires
            light.directional = 1
        light.dir[:] = np.array(direction) / np.linalg.norm(direction)
        light.ambient[:], light.diffuse[:], light.specular[:] = ambient, diffuse, 0.1


def _floor_height(model: Any) -> float | None:
    planes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
    return float(model.geom_pos[planes[0], 2]) if len(planes) else None


def _move_floor(scene: Any, lookat: NDArray[np.float64], period: float) -> None:
    """Move the floor with the camera, by whole periods of the floor's pattern, so that it looks infinite."""
    for geom in scene.geoms[: scene.ngeom]:
        if geom.type == mujoco.mjtGeom.mjGEOM_PLANE:
            geom.pos[:2] = np.round(lookat[:2] / period) * period


def _cast_shadows(model: Any, data: Any, scene: Any, floor: float) -> None:
    """Add a dark flat ellipse under each limb as a cheap shadow that fades as the limb rises."""
    for geom in np.flatnonzero(model.geom_bodyid > 0):
        radius = model.geom_size[geom, 0]
        axis = data.geom_xmat[geom].reshape(3, 3)[:2, 2] * model.geom_size[geom, 1]
        reach = float(np.linalg.norm(axis))
        along = axis / reach if reach else np.array([1.0, 0.0])
        above = max(0.0, data.geom_xpos[geom, 2] - floor)
        alpha = _SHADOW_ALPHA * max(0.0, 1.0 - above / 1.6)
        turn = np.array([[along[0], -along[1], 0.0], [along[1], along[0], 0.0], [0.0, 0.0, 1.0]])
        mujoco.mjv_initGeom(
            scene.geoms[scene.ngeom],
            mujoco.mjtGeom.mjGEOM_ELLIPSOID,
            np.array([reach + radius, radius, 0.001]),
            np.array([*data.geom_xpos[geom, :2], floor + 0.003]),
            turn.ravel(),
            np.array([0.1, 0.15, 0.25, alpha], np.float32),
        )
        scene.ngeom += 1


def _gradient(elevation: float, fovy: float, size: int) -> Frame:
    """Return the background, a gradient from horizon to sky, with the bottom row first as in OpenGL."""
    rows = np.linspace(-1.0, 1.0, size)
    angles = elevation + np.degrees(np.arctan(rows * np.tan(np.radians(fovy / 2))))
    share = np.clip(angles / 25.0, 0.0, 1.0)[:, None, None]
    colors: NDArray[np.float64] = 255.0 * (_HORIZON + share * (_SKY - _HORIZON))
    return np.broadcast_to(colors.astype(np.uint8), (size, size, 3))
