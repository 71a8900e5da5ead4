from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.project.settings import Settings, load
from headwater.project.settings.errors import SettingsError, UnknownSettingError, UnsetVariableError

if TYPE_CHECKING:
    from pathlib import Path


def settings_of(
    folder: Path, text: str, environ: dict[str, str] | None = None, profile: str | None = None
) -> Settings:
    path = folder / "headwater.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, environ=environ or {}, profile=profile)


def test_an_empty_file_starts_everything_locally_beside_itself(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "")

    assert tmp_path / ".headwater" == settings.home
    assert settings.services.kafka.address is None
    assert tmp_path / "views.py" == settings.views_path


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[spark]\nmastr = 'local[2]'", "spark.master"),
        ("[services.kafka]\nadress = 'h:1'", "services.kafka.address"),
        ("[source.shop]\ndns = 'x'", "source.shop.dsn"),
        ("[servces]", "services"),
    ],
    ids=["section", "nested", "named by the user", "top"],
)
def test_an_unknown_key_names_the_nearest_setting(tmp_path: Path, text: str, nearest: str) -> None:
    with pytest.raises(UnknownSettingError) as refused:
        settings_of(tmp_path, text)

    assert refused.value.hint is not None
    assert nearest in refused.value.hint


def test_an_unset_variable_is_named_and_no_value_shown(tmp_path: Path) -> None:
    with pytest.raises(UnsetVariableError) as refused:
        settings_of(tmp_path, '[source.shop]\ndsn = "postgresql://u:${SHOP_PASSWORD}@h/d"')

    assert "SHOP_PASSWORD" in refused.value.message
    assert "postgresql" not in str(refused.value.__dict__)


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    with pytest.raises(UnsetVariableError):
        settings_of(tmp_path, '[source.shop]\ndsn = "${SHOP_DSN}"', {"SHOP_DSN": ""})


def test_variables_are_filled_with_defaults_where_given(tmp_path: Path) -> None:
    text = '[services.kafka]\naddress = "${BROKER:-localhost:9092}"'

    settings = settings_of(tmp_path, text)

    assert settings.services.kafka.address is not None
    assert settings.services.kafka.address.get_secret_value() == "localhost:9092"


def test_a_secret_may_stand_in_a_dotenv_file_which_the_environment_overrides(
    tmp_path: Path,
) -> None:
    (tmp_path / ".env").write_text("# secrets\nSHOP_DSN=postgresql://a=b\nJAVA_HOME=/file\n")

    settings = settings_of(tmp_path, '[source.shop]\ndsn = "${SHOP_DSN}"', {"JAVA_HOME": "/env"})

    dsn = settings.for_source("shop").dsn
    assert dsn is not None
    assert dsn.get_secret_value() == "postgresql://a=b"
    assert str(settings.java_home) == "/env"


def test_a_profile_lies_over_the_rest(tmp_path: Path) -> None:
    text = (
        "[spark]\nmaster='local[2]'\ndriver_memory_mib=900\n[profile.prod.spark]\nmaster='yarn'\n"
    )

    settings = settings_of(tmp_path, text, profile="prod")

    assert (settings.spark.master, settings.spark.driver_memory_mib) == ("yarn", 900)


def test_a_profile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown profile prod"):
        settings_of(tmp_path, "", profile="prod")


def test_a_secret_is_not_printed(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, '[source.shop]\ndsn = "postgresql://u:hunter2@h/d"')

    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    "text",
    [
        "[source.shop]\nheartbeat_interval_ms = 0",
        "[source.shop]\ntopic_partitions = 'many'",
        "[services.kafka]\nport = 80",
        "not toml",
        "[project]\nname = 'Upper Case'",
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError):
        settings_of(tmp_path, text)


def test_a_missing_file_hints_at_init(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path / "headwater.toml", environ={})

    assert "headwater init" in (refused.value.hint or "")
